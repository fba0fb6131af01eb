"""What is sent, told by the id alone: `new-41` is always the same job, whoever asks for it."""

from typing import Final

from asyncqueue import NewJob
from asyncqueue.job import encode_payload

NEW: Final = "new"
OUTBOX: Final = "outbox"
POISON: Final = "poison"  # the receiver has accepted this id with another quantity before: 409
LARGE: Final = "large"  # more bytes than the receiver takes: 413
DEADLY: Final = (POISON, LARGE)

BODY_BYTES_MAX: Final = 4_096
MAX_ATTEMPTS: Final = 10_000  # kills use attempts up; none may die of them


def kind_of(job_id: str) -> str:
    return job_id.partition("-")[0]


def quantity(job_id: str) -> int:
    return 1 + int(job_id.partition("-")[2]) % 97


def payload(job_id: str) -> dict[str, str]:
    return {"of": job_id, "text": "x" * BODY_BYTES_MAX} if kind_of(job_id) == LARGE else {"of": job_id}


def job(job_id: str) -> NewJob:
    return NewJob(job_id, quantity(job_id), encode_payload(payload(job_id)), max_attempts=MAX_ATTEMPTS)


def message(job_id: str, more: int = 0) -> dict[str, object]:
    """Return the body of the request for this job, or one for `more` pieces."""
    return {"id": job_id, "qty": quantity(job_id) + more, "payload": payload(job_id)}


def is_deadly(job_id: str) -> bool:
    return kind_of(job_id) in DEADLY
