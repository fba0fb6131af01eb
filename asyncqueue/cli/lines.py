"""JSON Lines into jobs, in constant memory: strict, bounded, and one bad line never hides the next one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

from asyncqueue.errors import InvalidJob
from asyncqueue.job import PRODUCT, NewJob, encode_payload

__all__ = ["BATCH_LINES", "LINE_BYTES_MAX", "Line", "batches", "parse_job", "parse_json"]

BATCH_LINES: Final = 1_000
BATCH_BYTES: Final = 4 * 1024 * 1024
# JSON may spell a character in six bytes (\u0061): every payload within its limit fits, unless padded with blanks.
LINE_BYTES_MAX: Final = 8 * PRODUCT.payload_bytes_max
_KEPT_BYTES: Final = 4_096  # of a line that is too long
_SKIP_BYTES: Final = 256 * 1024
_REQUIRED: Final = frozenset({"id", "qty"})
_ALLOWED: Final = _REQUIRED | {"payload", "queue", "kind", "priority", "delay_ms", "ttl_ms", "max_attempts"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of input: its number from 1, its bytes without the line end, its job or what is wrong with it."""

    number: int
    raw: bytes
    job: NewJob | None
    error: str = ""
    end_bytes: int = 0  # how much of the input is read up to and with this line


def batches(stream: BinaryIO, defaults: NewJob) -> Iterator[list[Line]]:
    """Yield the lines of `stream` in sets of up to 1,000 lines or about 4 MiB; blank lines are passed over.

    Keys that a line does not have are taken from `defaults`. Blocking: run it in a thread.
    """
    batch: list[Line] = []
    batch_bytes = 0
    for line in _lines(stream, defaults):
        batch.append(line)
        batch_bytes += len(line.raw)
        if len(batch) >= BATCH_LINES or batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def parse_job(raw: bytes, defaults: NewJob) -> NewJob:
    """Return the checked job in one line. Raises `InvalidJob` for all that is not strictly one."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJob(f"not UTF-8: byte {error.start + 1} of the line") from None
    members = parse_json(text)
    if type(members) is not dict:
        raise InvalidJob("not a JSON object")
    if unknown := sorted(members.keys() - _ALLOWED):
        raise InvalidJob(f"unknown key {ascii(unknown[0])[:60]}")
    if missing := sorted(_REQUIRED - members.keys()):
        raise InvalidJob(f"{' and '.join(missing)} missing")
    if "payload" in members:
        members["payload"] = encode_payload(members["payload"])
    job = replace(defaults, **members)
    job.check()
    return job


def parse_json(text: str) -> Any:
    """Return the value of strict JSON: no NaN or Infinity, no duplicate keys. Raises `InvalidJob`."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise InvalidJob("not JSON: nested too deeply") from None
    except ValueError as error:
        raise InvalidJob(f"not JSON: {error}") from None


def _lines(stream: BinaryIO, defaults: NewJob) -> Iterator[Line]:
    number = end_bytes = 0
    while raw := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        end_bytes += len(raw)
        if len(raw) > LINE_BYTES_MAX and not raw.endswith(b"\n"):
            end_bytes += _skip(stream)
            error = f"longer than {LINE_BYTES_MAX} bytes (only its beginning is kept)"
            yield Line(number, raw[:_KEPT_BYTES], None, error, end_bytes)
            continue
        raw = raw.removesuffix(b"\n")
        if raw.strip():
            yield _line(number, raw, defaults, end_bytes)


def _line(number: int, raw: bytes, defaults: NewJob, end_bytes: int) -> Line:
    try:
        return Line(number, raw, parse_job(raw, defaults), "", end_bytes)
    except InvalidJob as error:
        return Line(number, raw, None, str(error), end_bytes)


def _skip(stream: BinaryIO) -> int:
    """Read on to the line's end without keeping it; return how many bytes that were."""
    skipped = 0
    while part := stream.readline(_SKIP_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
