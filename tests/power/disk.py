"""What a disk may hold after the power was cut, given what was done to its files.

The model is the weakest one that SQLite's own documentation allows a disk to have. Until a file is synced, any
subset of its writes and truncations may have reached the disk, a write by sectors of 512 bytes; until the folder
is synced, any subset of the creations and removals of names. What was synced is there.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath

from tests.vfs.shim import Call

__all__ = ["Cut", "Disk", "Image", "Log", "cuts", "every_cut", "snapshots"]

SECTOR = 512
Image = dict[str, bytes]
"""The files of a folder, by name."""
Keep = Callable[[], bool]
"""Says of one change after the other whether it reached the disk."""


class Log:
    """A listener that writes down what is done to the files, and where something was acknowledged."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.acknowledged: list[int] = []

    def before(self, call: Call) -> None:
        """See `tests.vfs.shim.Listener`."""
        if call.what in ("write", "truncate", "sync", "delete") or (call.what == "open" and call.is_new):
            self.calls.append(call)

    def read(self, _call: Call, data: bytes) -> bytes:
        """See `tests.vfs.shim.Listener`."""
        return data

    def acknowledge(self) -> None:
        """Somebody was told that what was done until now is safe."""
        self.acknowledged.append(len(self.calls))


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes

    def sectors(self) -> Iterator["_Write"]:
        """Split at the disk's sectors."""
        start = 0
        while start < len(self.data):
            end = min(len(self.data), start + SECTOR - (self.offset + start) % SECTOR)
            yield _Write(self.offset + start, self.data[start:end])
            start = end

    def onto(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int

    def sectors(self) -> Iterator["_Truncate"]:
        yield self

    def onto(self, content: bytearray) -> None:
        del content[self.size :]


@dataclass(eq=False, slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)
    syncs_folder: bool = False  # SQLite syncs the folder with the first sync of a journal that it made


@dataclass(frozen=True, slots=True)
class _Naming:
    name: str
    file: _File | None


class Disk:
    """The files of one folder: what is safe of them, and what is still on its way."""

    def __init__(self, *names: str) -> None:
        self._safe: dict[str, _File] = {name: _File() for name in names}
        self._namings: list[_Naming] = []
        self._seen: dict[str, _File] = dict(self._safe)  # as running programs see it

    def apply(self, call: Call) -> None:
        """Do what SQLite did."""
        name = PurePath(call.path).name
        if call.what == "open":
            file = _File(syncs_folder=call.is_journal)
            self._seen[name] = file
            self._namings.append(_Naming(name, file))
        elif call.what == "delete":
            self._seen.pop(name)
            self._namings.append(_Naming(name, None))
            if call.syncs_folder:
                self._sync_folder()
        elif call.what == "sync":
            self._sync(self._seen[name])
        else:
            change = _Write(call.offset, call.data) if call.what == "write" else _Truncate(call.offset)
            self._seen[name].pending.append(change)

    def _sync(self, file: _File) -> None:
        for change in file.pending:
            change.onto(file.content)
        file.pending.clear()
        if file.syncs_folder:
            file.syncs_folder = False
            self._sync_folder()

    def _sync_folder(self) -> None:
        for naming in self._namings:
            _rename(self._safe, naming)
        self._namings.clear()

    @property
    def pending(self) -> int:
        """Return how many changes are on their way."""
        return len(self._namings) + sum(len(file.pending) for file in self._files())

    def image(self, keep: Keep, *, torn: bool = False) -> Image:
        """Return the folder: `keep` decides change by change (if `torn`: sector by sector) what is there."""
        names = dict(self._safe)
        for naming in self._namings:
            if keep():
                _rename(names, naming)
        contents: dict[int, bytes] = {}
        for file in self._files():
            content = bytearray(file.content)
            for change in file.pending:
                for part in change.sectors() if torn else (change,):
                    if keep():
                        part.onto(content)
            contents[id(file)] = bytes(content)
        return {name: contents[id(file)] for name, file in names.items()}

    def seen(self) -> Image:
        """Return the folder as running programs see it."""
        image = {}
        for name, file in self._seen.items():
            content = bytearray(file.content)
            for change in file.pending:
                change.onto(content)
            image[name] = bytes(content)
        return image

    def _files(self) -> list[_File]:
        found = [
            *self._safe.values(),
            *self._seen.values(),
            *(n.file for n in self._namings if n.file is not None),
        ]
        return list({id(file): file for file in found}.values())


def _rename(names: dict[str, _File], naming: _Naming) -> None:
    if naming.file is None:
        names.pop(naming.name, None)
    else:
        names[naming.name] = naming.file


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of the power after `calls` calls, when `acknowledged` answers had been given."""

    calls: int
    acknowledged: int
    image: Image


def cuts(log: Log, names: Sequence[str], rng: random.Random, each: int) -> Iterator[Cut]:
    """Yield `each` cuts at random for every moment of `log`: nothing kept, all kept, some kept, torn writes."""
    for calls, acknowledged, disk in _moments(log, names):
        for number in range(min(each, 2 if disk.pending == 0 else each)):
            torn = number % 2 == 1
            share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            yield Cut(calls, acknowledged, disk.image(lambda share=share: rng.random() < share, torn=torn))


def every_cut(log: Log, names: Sequence[str], pending_max: int) -> Iterator[Cut]:
    """Yield every subset of the changes on their way at each moment, unless there are more than `pending_max`."""
    for calls, acknowledged, disk in _moments(log, names):
        if disk.pending <= pending_max:
            for kept in product((False, True), repeat=disk.pending):
                answers = iter(kept)
                yield Cut(calls, acknowledged, disk.image(lambda answers=answers: next(answers)))


def snapshots(log: Log, names: Sequence[str]) -> list[Image]:
    """Return the folder at each acknowledgement, as running programs saw it."""
    seen, found = Disk(*names), []
    marks = iter([*log.acknowledged, None])
    mark = next(marks)
    for number in range(len(log.calls) + 1):
        while mark == number:
            found.append(seen.seen())
            mark = next(marks)
        if number < len(log.calls):
            seen.apply(log.calls[number])
    return found


def _moments(log: Log, names: Sequence[str]) -> Iterator[tuple[int, int, Disk]]:
    disk = Disk(*names)
    for number in range(len(log.calls) + 1):
        yield number, bisect_right(log.acknowledged, number), disk
        if number < len(log.calls):
            disk.apply(log.calls[number])
