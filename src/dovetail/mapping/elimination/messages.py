"""Exact lowest weighted sums of a problem."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.arrays import Floats
from dovetail.mapping.elimination.needed_options import EASY_ENTRIES, least_choice
from dovetail.mapping.elimination.problem import CostProblem, check, check_weights
from dovetail.mapping.elimination.tree_messages import TreeMessages, tree_of

__all__ = ["Messages", "cheapest", "through", "tree_of"]


def cheapest(problem: CostProblem, weights: Sequence[float] | Floats) -> tuple[float, tuple[int, ...]]:
    """The exact lowest weighted sum of objectives and a choice that attains it; infinite and () if all is forbidden.

    Ties go to the first option of each variable in turn, the last eliminated first.
    """
    check(problem)
    tree = tree_of(problem)
    passes = Messages(problem, tree, check_weights(problem, weights))
    return passes.lowest, passes.choice()


def through(problem: CostProblem, weights: Sequence[float] | Floats) -> list[Floats]:
    """The exact lowest weighted sum of any choice through each option of each variable."""
    check(problem)
    passes = Messages(problem, tree_of(problem), check_weights(problem, weights))
    passes.send_down()
    return passes.marginals()


class Messages(TreeMessages):
    """Messages of a tree without copies; the lowest sum and its choice alone need none where those would be large."""

    _solved: tuple[float, tuple[int, ...]] | None = None

    def _cheapest(self) -> tuple[float, tuple[int, ...]]:
        if self._solved is None:
            if self._up or self.tree.work <= EASY_ENTRIES:
                self._solved = super().lowest, super().choice()
            else:
                self._solved = least_choice(self.weighted, self.tree)
        return self._solved

    @property
    def lowest(self) -> float:
        """The lowest sum of all choices."""
        return self._cheapest()[0]

    def choice(self) -> tuple[int, ...]:
        """A choice with the lowest sum; empty if all is forbidden."""
        return self._cheapest()[1][: self.count]
