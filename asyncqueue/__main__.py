"""`python -m asyncqueue` and the `asyncqueue` command."""

import os
import sys
from pathlib import Path
from typing import Final

__all__ = ["main"]

_INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line of this process and exit: 0 done, 1 failed, 2 wrong usage or input, 130 Ctrl-C."""
    try:
        from asyncqueue.cli.app import cli  # noqa: PLC0415 - takes half a second, in which Ctrl-C is no traceback
        from asyncqueue.cli.failure import run  # noqa: PLC0415
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    if sys.stdout is None:  # closed by the caller: there is nobody to tell, and that is no error
        sys.stdout = Path(os.devnull).open("w", encoding="ascii", errors="replace")  # noqa: SIM115 - until the end
    run(cli, sys.argv[1:])


if __name__ == "__main__":
    main()
