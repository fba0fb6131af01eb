"""The note chore: what is known of attempts whose leases are left to run out goes into the history."""

import logging
from collections import deque

import anyio

from asyncqueue.errors import AsyncQueueError
from asyncqueue.job import Note
from asyncqueue.queue import Queue

__all__ = ["NoteChore"]

log = logging.getLogger("asyncqueue")

_KEPT_MAX = 1_024


class NoteChore:
    """Writes notes beside the reports, never before them: a note that fails, hangs or is too many is let go."""

    name = "note"

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._notes: deque[Note] = deque(maxlen=_KEPT_MAX)
        self._turn = anyio.Lock()

    def add(self, note: Note) -> None:
        """Keep a note for the next pass."""
        self._notes.append(note)

    async def run_once(self) -> None:
        """Write what was kept; a failure costs these notes and nothing else."""
        async with self._turn:
            notes = tuple(self._notes)
            self._notes.clear()
            lost = f"the history keeps nothing of {len(notes)} attempts left to their leases"
            try:
                await self._queue.note_many(notes)
            except AsyncQueueError as error:
                log.warning("%s: %s", lost, error)
            except Exception:
                log.exception(lost)
