"""Damage good and bad bytes at random and bring them to every door; the bodies go to a real inbox as well.

python -m tests.hostile --inputs 1000000 --seed 1
"""

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from asyncqueue import wire
from benchmarks.harness import python_process
from tests.hostile import doors
from tests.hostile.corpus import CORPUS, WHOLE

SOURCES = [WHOLE, doors.ACK, b'{"id":"a-1","qty":3}', *(body for body in CORPUS.values() if len(body) < 1_000)]
PIECES = [
    b'"',
    b"{",
    b"[",
    b"]",
    b"}",
    b",",
    b":",
    b"\\",
    b"\\ud800",
    b"1e999",
    b"NaN",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
]
DATES = [b"Mon, 01 Jan 2029 00:00:00 GMT", b"Fri, 31 Dec 9999 23:59:59 -2359", b"120", b"-1", b"1e3", b"9" * 40]
NOTES = [b"again", b"a" * 64, b"a" * 65, b"", b"a\n"]
DAMAGES_MAX = 4
WHOLE_PART = 0.5
TO_INBOX = 20  # one of so many bodies, to each of the two paths
IN_FLIGHT = 32


def source(chance: random.Random) -> bytes:
    """Return a whole message as often as what is none."""
    if chance.random() < WHOLE_PART:
        return b'{"id":"m%d","qty":%d,"payload":[%d]}' % tuple(chance.randint(0, 1_000) for _ in range(3))
    return chance.choice(SOURCES)


def damaged(chance: random.Random, whole: bytes) -> bytes:
    """Return `whole` with a few bytes changed, cut out, put in or repeated."""
    data = bytearray(whole)
    for _ in range(chance.randint(0, DAMAGES_MAX)):
        place = chance.randint(0, len(data))
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = chance.randbytes(chance.randint(1, 3))
            case 1:
                del data[place : place + chance.randint(1, 8)]
            case 2:
                data[place:place] = chance.choice(PIECES)
            case 3:
                data[place:place] = data[: chance.randint(0, len(data))]
            case _:
                other = chance.choice(SOURCES)
                data[place:] = other[chance.randint(0, len(other)) :]
    return bytes(data)


def see(chance: random.Random) -> tuple[str, bytes]:
    """Bring one input to its door; return which door it was, and the input. Raises if anything does not hold."""
    match chance.randrange(8):
        case 0:
            value = damaged(chance, chance.choice(DATES))
            doors.see_retry_after(value.decode("latin-1"), chance.randint(0, 10**15))
            return "Retry-After", value
        case 1:
            value = damaged(chance, chance.choice(NOTES))
            doors.see_note(value.decode("latin-1"))
            return "redrive notes", value
        case 2 | 3:
            value = damaged(chance, chance.choice((doors.ACK, source(chance))))
            doors.see_ack(value)
            return "acknowledgements", value
        case 4 | 5:
            items = b",".join(damaged(chance, source(chance)) for _ in range(chance.randint(1, 4)))
            value = damaged(chance, b"[" + items + b"]")
            doors.see_batch(value)
            return "batches", value
        case _:
            value = damaged(chance, source(chance))
            doors.see_body(value)
            return "bodies, inbox and JSON Lines alike", value


async def to_inbox(url: str, bodies: Iterator[tuple[str, bytes]]) -> Counter[str]:
    """Post the bodies from some tasks at once; return how they were answered. Raises for what must not be."""
    answered: Counter[str] = Counter()

    async def post() -> None:
        for path, body in bodies:
            async with session.post(url + path, data=body, headers={"Content-Type": wire.JSON_TYPE}) as answer:
                text = await answer.read()
            is_known = path == "" and doors.read_by_inbox(body) is not None
            taken = (200, 409) if is_known else (400, 413, 422)
            assert answer.status in taken or (path and answer.status == 200), (answer.status, path, body, text)
            answered[f"{path or '/'} {answer.status}"] += 1

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(post())
    return answered


def main() -> int:
    """See as many inputs as asked for, then post a part of them; print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, seen, began = random.Random(options.seed), Counter[str](), time.perf_counter()
    kept: list[tuple[str, bytes]] = []
    slowest_s = 0.0
    for number in range(options.inputs):
        at = time.thread_time()
        try:
            door, value = see(chance)
        except Exception:
            print(f"input {number} of seed {options.seed} broke a promise", file=sys.stderr)
            raise
        slowest_s = max(slowest_s, time.thread_time() - at)
        seen[door] += 1
        if number % TO_INBOX == 0 and door.startswith("b"):
            kept.append(("/batch" if door == "batches" else "", value))
    for door, count in sorted(seen.items()):
        print(f"{count:9,} {door}")
    with tempfile.TemporaryDirectory() as folder:
        inbox = str(Path(folder) / "inbox.db")
        with python_process("-m", "receiver", inbox, "--port", "0") as (_process, ready):
            answered = asyncio.run(to_inbox(f"{ready['url']}", iter(kept)))
    print(f"{answered.total():9,} posted to a real inbox: {dict(sorted(answered.items()))}")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - began
    cost = f"the slowest {slowest_s * 1000:.1f} ms of CPU, {peak_mb:.0f} MB, {seconds:.0f} s"
    print(f"{options.inputs:,} inputs, every promise kept; {cost}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
