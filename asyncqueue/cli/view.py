"""What dispatchers do, as numbers and as a live picture on a terminal. Reads event records, whoever sent them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncqueue.cli.render import cell, console

__all__ = ["LiveView", "Tally"]

_BY_STATUS: Final = {"done": "done", "dead": "dead", "pending": "retried"}
_RATE_WINDOW_S: Final = 1.0
_TROUBLES: Final = {
    "held": "the endpoint rests for {pause_ms} ms: {error}",
    "batch_refused": "the endpoint takes no batches: {error}",
    "chore_failed": "{chore}: {error} (tried again in {pause_ms} ms)",
}


@dataclass(slots=True)
class Tally:
    """The sums of the events of any number of dispatchers; `in_flight` and `owners` by the source's name."""

    claimed: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    unsettled: int = 0  # stale, or left to the lease
    trouble: str = ""
    in_flight: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    @property
    def sending(self) -> int:
        """Return how many sends are under way, as far as the events say."""
        return sum(self.in_flight.values())

    def feed(self, record: Mapping[str, Any], source: str = "") -> None:
        """Add one event record (`events.record`) of the dispatcher called `source`."""
        match record.get("event"):
            case "started":
                self.owners[source] = str(record.get("owner"))
                self.in_flight[source] = 0
            case "claimed":
                self.claimed += int(record["count"])
                self.in_flight[source] = int(record["in_flight"])
            case "settled":
                self._settled(record, source)
            case "released":
                self.released += int(record["count"])
            case "lease_lost":
                self.lost += 1
                self._landed(source)
                self.trouble = f"job {record['id']}: lease lost: {record['why']}"
            case "held" | "batch_refused" | "chore_failed" as event:
                self.trouble = _TROUBLES[event].format_map(record)
            case "chore_recovered":
                self.trouble = ""
            case "stopped":
                self.in_flight[source] = 0

    def gone(self, source: str) -> None:
        """Take note that the dispatcher called `source` has ended, however it did."""
        self.in_flight[source] = 0

    def _settled(self, record: Mapping[str, Any], source: str) -> None:
        self._landed(source)
        name = _BY_STATUS.get(str(record["status"]), "unsettled")
        setattr(self, name, getattr(self, name) + 1)
        if record["error"]:
            self.trouble = f"job {record['id']}: {record['error']}"

    def _landed(self, source: str) -> None:
        self.in_flight[source] = max(0, self.in_flight.get(source, 0) - 1)


class LiveView:
    """A picture of a tally on the terminal, redrawn a few times a second; the last one stays there.

    `total` is how many jobs were live at the start when they are to be drained, None for an endless run.
    """

    def __init__(self, title: str, tally: Tally, total: int | None) -> None:
        self._title = title
        self._tally = tally
        self._total = total
        self._marked_at = time.monotonic()
        self._marked_done = 0
        self._rate = 0.0
        self._live = Live(console=console(), get_renderable=self.picture, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def picture(self) -> RenderableType:
        """Return what is shown now."""
        tally = self._tally
        parts: list[RenderableType] = [cell(f"{self._title}   {self._jobs_per_s():.0f} jobs/s")]
        if self._total:
            parts.append(ProgressBar(total=self._total, completed=min(tally.done + tally.dead, self._total)))
        numbers = Table.grid(padding=(0, 2))
        names = ("claimed", "done", "retried", "dead", "released", "lost", "unsettled")
        numbers.add_row(*names, "sending", style="dim")
        numbers.add_row(*(str(getattr(tally, name)) for name in names), str(tally.sending))
        parts.append(numbers)
        parts.append(cell(tally.trouble, 200) if tally.trouble else Text(""))
        return Group(*parts)

    def _jobs_per_s(self) -> float:
        now = time.monotonic()
        if now - self._marked_at >= _RATE_WINDOW_S:
            self._rate = (self._tally.done - self._marked_done) / (now - self._marked_at)
            self._marked_at, self._marked_done = now, self._tally.done
        return self._rate
