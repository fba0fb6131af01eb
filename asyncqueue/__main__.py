"""`python -m asyncqueue` and the `asyncqueue` command."""

import sys

from asyncqueue.cli.app import cli
from asyncqueue.cli.failure import run

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit: 0 done, 1 failed, 2 wrong usage or input, 130 Ctrl-C."""
    run(cli, sys.argv[1:])


if __name__ == "__main__":
    main()
