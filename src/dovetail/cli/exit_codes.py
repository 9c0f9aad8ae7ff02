"""What the exit code of a command says."""

from __future__ import annotations

#: The question is answered; the answer may be unproven, and says so.
EXIT_ANSWERED = 0
#: The input is wrong.
EXIT_WRONG_INPUT = 2
#: It is proven that no plan fits, or the plan asked about does not.
EXIT_INFEASIBLE = 3
#: Nothing was found in the time given, and nothing is proven.
EXIT_NOTHING_FOUND = 4
#: A certificate or the directory of a run is not verified.
EXIT_NOT_VERIFIED = 5
#: Interrupted; the best so far is printed where there is one.
EXIT_INTERRUPTED = 130
