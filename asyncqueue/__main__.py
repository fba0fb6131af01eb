"""`python -m asyncqueue` and the `asyncqueue` command."""

import os
import sys
from pathlib import Path

from asyncqueue.cli.app import cli
from asyncqueue.cli.failure import run

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit: 0 done, 1 failed, 2 wrong usage or input, 130 Ctrl-C."""
    if sys.stdout is None:  # closed by the caller: there is nobody to tell, and that is no error
        sys.stdout = Path(os.devnull).open("w", encoding="ascii", errors="replace")  # noqa: SIM115 - until the end
    run(cli, sys.argv[1:])


if __name__ == "__main__":
    main()
