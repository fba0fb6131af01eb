"""`backup` and `restore`, as their users run them."""

import json

import pytest


def said_once(ended, code, *words):
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.count("\n") == 1
    assert all(word in ended.stderr for word in words), ended.stderr


def token(run, db, job_id):
    return json.loads(run("job", "show", db, job_id, "--json").stdout)["token"]


def test_a_copy_and_the_way_back(run, tmp_path):
    run("enqueue", "jobs.db", "a", 1)
    ended = run("backup", "jobs.db", "copy.db", "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told == {"db": "jobs.db", "file": "copy.db", "bytes": (tmp_path / "copy.db").stat().st_size}
    ended = run("restore", "back.db", "--from", "copy.db", "--json")
    assert ended.returncode == 0, ended.stderr
    floor = json.loads(ended.stdout)["tokens_above"]
    assert token(run, "back.db", "a") == floor > 0
    run("enqueue", "back.db", "b", 1)
    assert token(run, "back.db", "b") == floor
    ended = run("restore", "back.db")
    assert (ended.returncode, ended.stdout.startswith("back.db: restored; tokens go on above ")) == (0, True)
    assert token(run, "back.db", "a") == token(run, "back.db", "b") > floor
    assert token(run, "jobs.db", "a") == 0


def test_a_read_only_file_can_be_copied(run, tmp_path):
    run("enqueue", "jobs.db", "a", 1)
    (tmp_path / "jobs.db").chmod(0o400)
    assert run("backup", "jobs.db", "copy.db").returncode == 0
    assert token(run, "copy.db", "a") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("backup", "jobs.db", "jobs.db"), "there already"),
        (("backup", "none.db", "copy.db"), "no such file"),
        (("backup", "jobs.db", "none/copy.db"), "the folder none does not exist"),
        (("backup", "jobs.db"), "Missing argument 'FILE'"),
        (("restore", "jobs.db", "--from", "jobs.db"), "there already"),
        (("restore", "new.db", "--from", "none.db"), "none.db: no such file"),
        (("restore", "none.db"), "none.db: no such file"),
        (("restore", "postgresql://me:secret@127.0.0.1/db", "--from", "jobs.db"), "server's own tools"),
        (("restore", "mysql://me:secret@127.0.0.1/db", "--from", "jobs.db"), "not a queue"),
    ],
)
def test_what_cannot_be_is_one_line(run, arguments, words):
    run("enqueue", "jobs.db", "a", 1)
    ended = run(*arguments)
    said_once(ended, 2, words)
    assert "secret" not in ended.stderr


def test_a_server_is_backed_up_by_its_own_tools_and_put_back_by_ours(run, postgres_url):
    run("enqueue", postgres_url, "a", 1)
    said_once(run("backup", postgres_url, "copy.db"), 2, "pg_dump")
    ended = run("restore", postgres_url, "--json")
    assert ended.returncode == 0, ended.stderr
    assert token(run, postgres_url, "a") == json.loads(ended.stdout)["tokens_above"] > 0
