"""Which statements the driver of PostgreSQL is asked for."""

import asyncpg
import pytest

__all__ = ["asked"]


def asked(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Return a list to which every statement is added that these methods of a connection are given from now on."""
    texts: list[str] = []

    def noting(plain):
        async def noted(self, sql, *arguments, **settings):
            texts.append(sql)
            return await plain(self, sql, *arguments, **settings)

        return noted

    for name in names:
        monkeypatch.setattr(asyncpg.Connection, name, noting(getattr(asyncpg.Connection, name)))
    return texts
