"""A look at the tables beside the store, and the faults that only the database itself can have, for each store."""

import contextlib
import sqlite3
from urllib.parse import parse_qs, urlsplit

import psycopg

from asyncqueue.errors import BadEffect


class SqliteRaw:
    IntegrityError = sqlite3.IntegrityError
    ask = "execute_fetchall"
    refusal = sqlite3.Error

    def __init__(self, path):
        self._path = path

    def select(self, sql):
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def execute(self, sql):
        self.select(sql)

    def tables(self):
        return sorted(self.select("SELECT name FROM sqlite_schema"))

    def empty(self, *tables):
        for table in tables:
            self.execute(f"DELETE FROM {table}")

    def insert_jobs(self, rows):
        """Write whole rows (dicts) past the store."""
        names = list(rows[0])
        statement = f"INSERT INTO jobs ({','.join(names)}) VALUES ({','.join('?' * len(names))})"
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.executemany(statement, [tuple(row.values()) for row in rows])

    @contextlib.contextmanager
    def held(self):
        """Keep every other writer out."""
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def write_at_once(self):
        """Prove that nobody has a transaction open that writes."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")

    def break_history(self):
        self.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON attempts BEGIN SELECT raise(ABORT, 'history is broken'); END"
        )


def server_of(url):
    """The server and database of a queue's URL, without the options."""
    return urlsplit(url)._replace(query="").geturl()


def schema_of(url):
    return parse_qs(urlsplit(url).query)["schema"][0]


class PostgresRaw:
    IntegrityError = psycopg.IntegrityError
    ask = "fetch"
    refusal = BadEffect

    def __init__(self, url):
        self.schema = schema_of(url)
        self._server = server_of(url)

    def connect(self):
        return psycopg.connect(self._server, autocommit=True, options=f"-csearch_path={self.schema}")

    def select(self, sql):
        with self.connect() as connection:
            answer = connection.execute(sql)
            return answer.fetchall() if answer.description else []

    def execute(self, sql):
        self.select(sql)

    def tables(self):
        return sorted(self.select(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}'"))

    def empty(self, *tables):
        with self.connect() as connection:
            for table in tables:
                connection.execute(f"DELETE FROM {table}")
            connection.execute("ALTER SEQUENCE jobs_seq RESTART")

    def insert_jobs(self, rows):
        """Write whole rows (dicts) past the store."""
        names = list(rows[0])
        statement = f"INSERT INTO jobs ({','.join(names)}) VALUES ({','.join(['%s'] * len(names))})"
        with self.connect() as connection, connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(statement, [tuple(row.values()) for row in rows])

    @contextlib.contextmanager
    def held(self):
        """Keep every other writer out."""
        with self.connect() as connection, connection.transaction(force_rollback=True):
            connection.execute("LOCK TABLE jobs IN EXCLUSIVE MODE")
            yield

    def write_at_once(self):
        """Prove that nobody has a transaction open that writes."""
        with self.connect() as connection, connection.transaction():
            connection.execute("LOCK TABLE jobs IN EXCLUSIVE MODE NOWAIT")

    def break_history(self):
        self.execute(
            "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RAISE EXCEPTION ''history is broken''; END'"
        )
        self.execute("CREATE TRIGGER broken BEFORE INSERT ON attempts EXECUTE FUNCTION broken()")


def raw_of(url):
    return PostgresRaw(url) if url.startswith("postgresql:") else SqliteRaw(url)
