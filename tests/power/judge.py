"""Record a workload, cut its power, and count what was lost.

`python -m tests.power.judge` cuts it far more often than the tests do.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.power.disk import Cut, Image, Log, cuts, every_cut, snapshots
from tests.power.images import Content, content_of
from tests.power.workloads import Workload, contract, queue, receiver
from tests.vfs.driver import driven_by
from tests.vfs.shim import shim

__all__ = ["SETTINGS", "Verdict", "cut_power", "record"]

NAME = "base.db"
EMPTY: Content = {"user_version": [(0,)]}
SETTINGS: dict[str, Workload] = {
    "queue, delete": queue("delete"),
    "queue, wal": queue("wal"),
    "receiver, delete": receiver("delete"),
    "receiver, wal": receiver("wal"),
}


@dataclass
class Verdict:
    """How many images there were, how many of them distinct, and what was wrong with them."""

    images: int = 0
    distinct: int = 0
    lost: int = 0
    damaged: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, kind: str, cut: Cut, what: str) -> None:
        """Count a fault and keep the first few of them."""
        if len(self.examples) < 5:
            self.examples.append(f"{kind} after {cut.calls} calls, {cut.acknowledged} answers: {what}")


def record(workload: Workload, folder: Path, *, cache_pages: int | None = None) -> Log:
    """Run `workload` on a file in `folder` and return what was done to it; a small cache spills early."""
    log = Log()
    with shim(log) as vfs, driven_by(vfs, cache_pages=cache_pages):
        asyncio.run(workload(folder / NAME, log.acknowledge))
    return log


def cut_power(log: Log, cut_at: Iterable[Cut], folder: Path) -> Verdict:
    """Open every image and compare it with what had been acknowledged by then.

    It must be whole, and hold exactly what the last answer promised, or that and the transaction under way.
    """
    promised: list[Content | str] = [EMPTY, *(content_of(image, folder, NAME) for image in snapshots(log, [NAME]))]
    verdict = Verdict()
    seen: dict[int, Content | str] = {}
    for cut in cut_at:
        verdict.images += 1
        key = _key(cut.image)
        if key not in seen:
            seen[key] = content_of(cut.image, folder, NAME)
        found = seen[key]
        if isinstance(found, str):
            verdict.damaged += 1
            verdict.note("damaged", cut, found)
        elif found not in promised[cut.acknowledged : cut.acknowledged + 2]:
            verdict.lost += 1
            verdict.note("lost", cut, f"it holds what was there after answer {_place(found, promised)}")
    verdict.distinct = len(seen)
    return verdict


def _key(image: Image) -> int:
    return hash(tuple(sorted(image.items())))


def _place(found: Content, promised: list[Content | str]) -> str:
    return str(promised.index(found)) if found in promised else "none: half a transaction"


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Make a folder for the images; in memory, where the system has a place for that."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def main() -> None:
    """Cut the power IMAGES times in each setting, then at every state of small commits."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--images", type=int, default=50_000, help="about how many for each setting")
    parser.add_argument("--pending-max", type=int, default=12, help="all subsets of at most so many changes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lost = 0
    for name, workload in {**SETTINGS, "contract (delete, FULL)": contract}.items():
        for cache_pages in (None, 10):
            with tempfile.TemporaryDirectory() as files, memory_folder() as folder:
                log = record(workload, Path(files), cache_pages=cache_pages)
                each = max(1, options.images // 2 // (len(log.calls) + 1))
                began = time.monotonic()
                found = [
                    ("random", cut_power(log, cuts(log, [NAME], random.Random(options.seed), each), folder)),
                    ("every", cut_power(log, every_cut(log, [NAME], options.pending_max), folder)),
                ]
            for kind, verdict in found:
                print(
                    f"{name}, cache {cache_pages or 'as it is'}, {kind}: {verdict.images:,} images"
                    f" ({verdict.distinct:,} distinct), {verdict.lost} lost, {verdict.damaged} damaged",
                    *verdict.examples[: 5 if workload is not contract else 1],
                    sep="\n  ",
                    flush=True,
                )
                lost += 0 if workload is contract else verdict.lost + verdict.damaged
            print(f"  in {time.monotonic() - began:.0f} s", flush=True)
    if lost:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
