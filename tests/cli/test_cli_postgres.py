"""Every command that takes a file takes the URL of a PostgreSQL server as well, and never prints its password."""

import json

import pytest

from tests.postgres_server import free_port
from tests.store.raw import raw_of


@pytest.fixture
def ask(run, postgres_url):
    """`ask("job", "list")` runs that command on the test's schema and returns its JSON answer."""

    def ask(*words, after=(), code=0):
        ended = run(*words, postgres_url, *after, "--json")
        assert ended.returncode == code, ended.stderr
        answers = [json.loads(line) for line in ended.stdout.splitlines()]
        return answers[0] if len(answers) == 1 else answers

    return ask


def test_life_of_some_jobs_told_by_the_commands(run, ask, serve, postgres_url, tmp_path):
    lines = [{"id": f"j{n}", "qty": 1, "queue": "mail"} for n in range(30)]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert ask("enqueue", after=("a", "3", "--payload", '{"x": 1}'))["result"] == "new"
    assert ask("enqueue", after=("--file", "jobs.jsonl"))["new"] == 30
    assert ask("job", "show", after=("a",))["qty"] == 3
    assert len(ask("job", "list", after=("--queue", "mail", "--limit", "100"))) == 30
    ask("job", "cancel", after=("j0",))
    assert ask("dlq", "list")["id"] == "j0"
    assert ask("dlq", "redrive", after=("j0", "--note", "again"))["redriven"] is True
    ask("queue", "pause", after=("mail",))
    ended = run("dispatch", postgres_url, serve(), "--drain")
    assert ended.returncode == 0, ended.stderr
    assert ask("stats")["done"] == 1
    ask("queue", "resume", after=("mail",))
    ended = run("dispatch", postgres_url, serve(), "--drain", "--processes", "2")
    assert ended.returncode == 0, ended.stderr
    assert ask("job", "wait", after=("j29", "--timeout-ms", "20000"))["status"] == "done"
    stats = ask("stats")
    assert (stats["done"], stats["live"]) == (31, 0)
    assert ask("purge", after=("--status", "done", "--older-than-ms", "0", "--all"))["purged"] == 31
    assert ask("stats")["total"] == 0


@pytest.mark.parametrize("words", [("stats",), ("job", "list"), ("queue", "list")])
def test_reading_makes_no_queue_where_there_is_none(run, said, postgres_url, words):
    said(run(*words, postgres_url), 2, "no queue in schema")


def test_init_adopts_a_schema_only_when_told(run, said, postgres_url):
    raw = raw_of(postgres_url)
    raw.execute(f"CREATE SCHEMA {raw.schema}")
    raw.execute("CREATE TABLE orders (id text)")
    for words in (("init",), ("enqueue", "a", "1")):
        said(run(words[0], postgres_url, *words[1:]), 2, "tables of another program (orders)", "init --adopt")
    assert run("init", postgres_url, "--adopt").returncode == 0
    assert run("enqueue", postgres_url, "a", 1).returncode == 0


def test_init_tells_no_password(run, postgres_url):
    url = postgres_url.replace("//postgres@", "//postgres:secret@")
    for words in ((), ("--json",)):
        ended = run("init", url, *words)
        assert ended.returncode == 0, ended.stderr
        assert "/postgres" in ended.stdout
        assert "secret" not in ended.stdout


def test_server_that_is_not_there_is_one_line_without_the_password(run, said):
    said(run("stats", f"postgresql://me:secret@127.0.0.1:{free_port()}/db"), 1, "cannot be reached", "/db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:secret@127.0.0.1/db?schema=Bad-Name", "schema must be"),
        ("postgresql://me:secret@127.0.0.1/db?pgbouncer=perhaps", "pgbouncer must be"),
        ("postgresql://me:secret@127.0.0.1/db?schema=a&schema=b", "schema may be given once"),
        ("postgresql://me:secret@127.0.0.1:x/db", "postgresql://127.0.0.1:x/db"),
    ],
)
def test_address_that_means_nothing_is_one_line_without_the_password(run, said, url, words):
    ended = run("stats", url)
    said(ended, 2, words)
    assert "secret" not in ended.stderr


def test_journal_is_not_for_a_server(run, said):
    url = "postgresql://me:secret@127.0.0.1/db"
    for command in (["init", url], ["enqueue", url, "a", 1], ["dispatch", url, "http://127.0.0.1:1/"]):
        said(run(*command, "--journal", "wal"), 2, "--journal", "SQLite file")
