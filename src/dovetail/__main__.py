"""`python -m dovetail`, and the command `dovetail`."""

import signal
from types import FrameType


def main() -> None:
    """Loads the command line and runs it; an interrupt while it loads ends it with a sentence too."""
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from dovetail.cli import main as run

    signal.signal(signal.SIGINT, heard)
    run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    import os

    os.write(2, b"dovetail: was interrupted before it began; let it run longer.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
