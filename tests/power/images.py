"""Open what a power cut left behind, by the standard library's SQLite, and say what is in it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.power.disk import Image

__all__ = ["Content", "content_of", "read"]

Content = dict[str, list[tuple[object, ...]]]


def content_of(image: Image, folder: Path, name: str) -> Content | str:
    """Return all rows by table after recovery, or the words of SQLite if it is damaged."""
    for left in folder.iterdir():
        left.unlink()
    for file, data in image.items():
        (folder / file).write_bytes(data)
    try:
        with closing(sqlite3.connect(folder / name, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # this copy is thrown away
            return _read(connection)
    except sqlite3.Error as error:
        return str(error)


def read(path: Path) -> Content:
    """Return all rows of the database at `path`, recovered if need be; raise `sqlite3.Error` if it is damaged."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        found = _read(connection)
    if isinstance(found, str):
        raise sqlite3.DatabaseError(found)
    return found


def _read(connection: sqlite3.Connection) -> Content | str:
    ((verdict, *_more),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if verdict != "ok":
        return str(verdict)
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    content: Content = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}
    content["user_version"] = connection.execute("PRAGMA user_version").fetchall()
    return content
