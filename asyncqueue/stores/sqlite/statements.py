"""Every SQL statement of the SQLite store, in the order of a job's life."""

from typing import Final

__all__ = ["BEGIN", "COMMIT", "DATA_VERSION", "PRAGMAS"]

PRAGMAS: Final = {
    "delete": ("PRAGMA journal_mode=DELETE", "PRAGMA synchronous=EXTRA"),
    "wal": ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"),
}
BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
DATA_VERSION: Final = "PRAGMA data_version"
