"""Is memory flat while a million jobs stream in and a hundred thousand drain?

Three processes, each measured by its own peak as the kernel counts it, in MB: `enqueue` of a stream,
then `dispatch --drain` of another file against `receiver`. The goal: each below 150 MB.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ROOT, machine, python_process, table

MB_MAX = 150


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """Wait for a child and return its peak resident memory in MB."""
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return usage.ru_maxrss / 1024


def enqueue(path: Path, count: int) -> float:
    """Stream `count` lines into `python -m asyncqueue enqueue`; return its peak in MB."""
    command = [sys.executable, "-m", "asyncqueue", "enqueue", str(path), "--file", "-", "--json"]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert child.stdin is not None
    for number in range(count):
        child.stdin.write(b'{"id":"m%d","qty":1,"payload":{"sku":%d}}\n' % (number, number))
    child.stdin.close()
    return peak_mb(child)


def drain(path: Path, inbox: Path) -> tuple[float, float]:
    """Drain a file into a receiver; return the peaks of dispatcher and receiver in MB."""
    with python_process("-m", "receiver", str(inbox), "--port", "0") as (receiver, ready):
        command = [
            sys.executable,
            "-m",
            "asyncqueue",
            "dispatch",
            str(path),
            str(ready["url"]),
            "--drain",
            "--json",
        ]
        dispatcher = peak_mb(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL))
        status = Path(f"/proc/{receiver.pid}/status").read_text("ascii")
        high = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return dispatcher, int(high.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--enqueue", type=int, default=1_000_000, help="jobs to stream in")
    parser.add_argument("--drain", type=int, default=100_000, help="jobs to drain")
    options = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        streamed = enqueue(Path(folder) / "million.db", options.enqueue)
        enqueue(Path(folder) / "jobs.db", options.drain)
        dispatcher, receiver = drain(Path(folder) / "jobs.db", Path(folder) / "inbox.db")
    rows = [
        (f"enqueue {options.enqueue:,} jobs from a stream", f"{streamed:.0f}"),
        (f"dispatch {options.drain:,} jobs", f"{dispatcher:.0f}"),
        (f"receiver of {options.drain:,} jobs", f"{receiver:.0f}"),
    ]
    print(table(("process", "peak MB"), rows))
    print(f"\nall below {MB_MAX} MB: {max(streamed, dispatcher, receiver) < MB_MAX}")


if __name__ == "__main__":
    main()
