"""`python -m dovetail`, and the command `dovetail`."""

import gc
import os
import signal
from types import FrameType


def main() -> None:
    """Loads the command line and runs it; an interrupt before a command begins ends it with a sentence too."""
    gc.set_threshold(500_000)  # a command is short and its data has few cycles
    # or pydantic looks through all that is installed for packages that extend it
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_early)
    from dovetail.cli import main as run

    try:
        run()
    finally:
        gc.freeze()  # or Python looks for cycles in all that there is, right before memory is given back


def leave_early(_number: int, _frame: FrameType | None) -> None:
    """Ends the process; the command line takes this back when a command begins."""
    os.write(2, b"dovetail: was interrupted before it began; let it run longer.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
