"""Two dispatchers and a receiver under mixed traffic, killed at random, for as long as you like.

`python -m tests.system.endurance --minutes 60`, or `make soak MINUTES=60`. One producer goes on all the time: new
jobs, some inside a transaction of its own that may be rolled back; the same jobs again; the same ids with other
quantities; jobs that the receiver refuses; messages that go straight to the inbox, once more or with another
quantity; redrives and purges. Every second all jobs are compared with what they were a second ago. In the end
faults stop, everything drains, and books, queue and ledger must agree. Memory, descriptors, threads and sizes are
noted every second; a run of ten minutes or more fails if they grow, memory from twenty minutes on
(tests/system/endurance/watch.py tells how that is judged). Exit status 1 names what is wrong.
"""

import argparse
import asyncio
import importlib.util
import json
import random
import sys
import tempfile
from pathlib import Path

from tests.system.endurance.report import document, draw, table
from tests.system.endurance.run import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="how long traffic and faults go on; 0: not at all"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw what was seen (needs the extra bench)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was seen")
    options = parser.parse_args()
    if options.minutes < 0:
        parser.error("--minutes must not be below 0")
    if options.plot and importlib.util.find_spec("matplotlib") is None:  # before the hour, not after it
        parser.error("--plot needs matplotlib: install the extra bench")
    if options.minutes == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(options.seed, Path(folder), options.minutes * 60))
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(document(result)) + "\n")
    if options.plot:
        draw(result, options.plot)
    sys.exit(1 if result.faults else 0)


if __name__ == "__main__":
    main()
