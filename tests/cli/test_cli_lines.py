"""JSON Lines: what is a job and what is not, one bad line hides no other, in constant memory."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncqueue.cli.lines import BATCH_LINES, LINE_BYTES_MAX, batches, parse_job
from asyncqueue.errors import InvalidJob
from asyncqueue.job import PRODUCT, NewJob

DEFAULTS = NewJob("", 0)
HOSTILE = {
    "empty object": b"{}",
    "no qty": b'{"id":"a"}',
    "no id": b'{"qty":1}',
    "array": b'["a",1]',
    "number": b"1",
    "null": b"null",
    "text": b'"a"',
    "not JSON": b"id=a,qty=1",
    "single quotes": b"{'id':'a','qty':1}",
    "trailing comma": b'{"id":"a","qty":1,}',
    "two values": b'{"id":"a","qty":1}{"id":"b","qty":1}',
    "comment": b'{"id":"a","qty":1} // one',
    "truncated": b'{"id":"a","qty":1',
    "true": b'{"id":"a","qty":true}',
    "float": b'{"id":"a","qty":1.0}',
    "exponent": b'{"id":"a","qty":1e2}',
    "string qty": b'{"id":"a","qty":"1"}',
    "null qty": b'{"id":"a","qty":null}',
    "zero": b'{"id":"a","qty":0}',
    "negative": b'{"id":"a","qty":-1}',
    "too large": b'{"id":"a","qty":1000000001}',
    "5,000 digits": b'{"id":"a","qty":' + b"9" * 5000 + b"}",
    "NaN": b'{"id":"a","qty":NaN}',
    "Infinity": b'{"id":"a","qty":1,"payload":Infinity}',
    "-Infinity": b'{"id":"a","qty":1,"payload":{"x":-Infinity}}',
    "1e400": b'{"id":"a","qty":1,"payload":1e400}',
    "duplicate key": b'{"id":"a","qty":1,"qty":2}',
    "duplicate key, escaped": b'{"id":"a","qty":1,"q\\u0074y":2}',
    "duplicate key in payload": b'{"id":"a","qty":1,"payload":{"k":1,"k":1}}',
    "unknown key": b'{"id":"a","qty":1,"quantity":1}',
    "key with control": b'{"id":"a","qty":1,"\\u001b[2J":1}',
    "id with blank": b'{"id":"a ","qty":1}',
    "id with newline": b'{"id":"a\\n","qty":1}',
    "id of 65": b'{"id":"' + b"a" * 65 + b'","qty":1}',
    "id a number": b'{"id":1,"qty":1}',
    "id NFC": '{"id":"é","qty":1}'.encode(),
    "lone surrogate in payload": b'{"id":"a","qty":1,"payload":"\\ud800"}',
    "lone surrogate in id": b'{"id":"\\udfff","qty":1}',
    "invalid UTF-8": b'{"id":"a","qty":1,"payload":"\xff"}',
    "overlong UTF-8": b'{"id":"a","qty":1,"payload":"\xc0\x80"}',
    "UTF-16": '{"id":"a","qty":1}'.encode("utf-16"),
    "BOM": b'\xef\xbb\xbf{"id":"a","qty":1}',
    "raw control": b'{"id":"a","qty":1,"payload":"\x01"}',
    "NUL": b'{"id":"a","qty":1}\x00',
    "deep": b'{"id":"a","qty":1,"payload":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "payload too large": b'{"id":"a","qty":1,"payload":"' + b"x" * PRODUCT.payload_bytes_max + b'"}',
    "bool priority": b'{"id":"a","qty":1,"priority":true}',
    "null queue": b'{"id":"a","qty":1,"queue":null}',
    "queue a number": b'{"id":"a","qty":1,"queue":7}',
    "empty kind": b'{"id":"a","qty":1,"kind":""}',
    "delay beyond ttl": b'{"id":"a","qty":1,"delay_ms":10,"ttl_ms":10}',
    "float ttl": b'{"id":"a","qty":1,"ttl_ms":1.5}',
    "attempts 0": b'{"id":"a","qty":1,"max_attempts":0}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_strictly_a_job_is_refused_with_one_printable_line(name):
    with pytest.raises(InvalidJob) as caught:
        parse_job(HOSTILE[name], DEFAULTS)
    assert str(caught.value)
    assert len(str(caught.value)) < 300


def test_all_keys_are_taken_and_defaults_fill_the_rest():
    raw = (
        b'{"id":"a","qty":2,"payload":{"b":1,"a":[]},"queue":"q","kind":"k","priority":-1,'
        b'"delay_ms":5,"ttl_ms":6,"max_attempts":7}'
    )
    assert parse_job(raw, DEFAULTS) == NewJob("a", 2, '{"a":[],"b":1}', "q", "k", -1, 5, 6, 7)
    defaults = NewJob("", 0, None, "mail", "job", 9)
    assert parse_job(b'{"id":"a","qty":2,"payload":null}\r', defaults) == NewJob("a", 2, None, "mail", "job", 9)


def test_a_set_has_at_most_1000_lines_and_blank_lines_count_only_in_numbers():
    source = b"\n \r\n" + b"".join(b'{"id":"j%d","qty":1}\n' % n for n in range(2 * BATCH_LINES + 1))
    sets = list(batches(io.BytesIO(source), DEFAULTS))
    assert [len(lines) for lines in sets] == [BATCH_LINES, BATCH_LINES, 1]
    assert sets[0][0].number == 3
    assert sets[-1][-1].number == 2 * BATCH_LINES + 3
    assert sets[-1][-1].end_bytes == len(source)


def test_a_set_is_bounded_in_bytes_too():
    line = b'{"id":"j","qty":1,"payload":"' + b"x" * 200_000 + b'"}\n'
    sets = list(batches(io.BytesIO(line * 100), DEFAULTS))
    assert sum(len(lines) for lines in sets) == 100
    assert max(len(lines) for lines in sets) <= 22


class _Endless(io.RawIOBase):
    """A line of `total` bytes that is never held as a whole, then a good line."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.tail = b'\n{"id":"after","qty":1}\n'

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        part = b"x" * min(len(buffer), self.left) if self.left else self.tail[: len(buffer)]
        self.left -= len(part) if self.left else 0
        if part[:1] != b"x":
            self.tail = self.tail[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def test_a_line_beyond_the_bound_is_passed_over_without_being_kept():
    lines = next(batches(io.BufferedReader(_Endless(50 * LINE_BYTES_MAX)), DEFAULTS))
    assert [line.number for line in lines] == [1, 2]
    assert lines[0].job is None
    assert "longer than" in lines[0].error
    assert len(lines[0].raw) <= 4096
    assert lines[1].job == NewJob("after", 1)


def test_lines_at_the_bound_are_read_whole():
    padding = LINE_BYTES_MAX - len(b'{"id":"a","qty":1}')
    fits = b'{"id":"a","qty":1' + b" " * padding + b"}"
    sets = list(batches(io.BytesIO(fits + b"\n" + b" " + fits + b"\n" + fits), DEFAULTS))
    lines = [line for one in sets for line in one]
    assert [line.job is not None for line in lines] == [True, False, True]
    assert [line.number for line in lines] == [1, 2, 3]


def test_the_summary_and_the_rejects_name_every_refused_line(run, db, tmp_path):
    rejects = tmp_path / "rejects.jsonl"
    good = b'{"id":"one","qty":1}'
    lines = [good, *HOSTILE.values(), good, b'{"id":"one","qty":2}', b'{"id":"two","qty":5}']
    source = b"\n".join(line.replace(b"\n", b" ") for line in lines)
    ended = run("enqueue", db, "--file", "-", "--rejects", rejects, "--json", stdin=source)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"asyncqueue: error: {len(HOSTILE)} of {len(HOSTILE) + 4} lines are invalid")
    assert ended.stderr.count("\n") == 1
    summary = json.loads(ended.stdout)
    named = summary.pop("rejects")
    total = len(HOSTILE)
    assert summary == {
        "lines": total + 4,
        "new": 2,
        "duplicate": 1,
        "conflict": 1,
        "invalid": total,
        "full": 0,
        "qty": 7,
    }
    assert [item["line"] for item in named] == [*range(2, total + 2), total + 3]
    assert named[-1]["kind"] == "conflict"
    written = [json.loads(line) for line in rejects.read_text("ascii").splitlines()]
    assert [item["line"] for item in written] == [item["line"] for item in named]
    assert all(set(item) == {"line", "error", "text"} for item in written)
    verbatim = [item["text"].encode("utf-8", "surrogateescape") for item in written]
    assert verbatim == [*(line.replace(b"\n", b" ") for line in HOSTILE.values()), b'{"id":"one","qty":2}']


def test_the_human_summary_names_the_first_few_and_escapes_them(run, db):
    source = '{"id":"a","qty":1}\n' + '{"id":"\\u001b[31m","qty":1}\n' * 7
    ended = run("enqueue", db, "--file", "-", stdin=source)
    assert ended.returncode == 2
    assert ended.stdout.startswith("8 lines: 1 new, 0 duplicate, 0 conflict, 7 invalid\n  line 2: id must be")
    assert "and 2 more: --rejects FILE writes them all" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_an_empty_input_is_no_error(run, db):
    ended = run("enqueue", db, "--file", "-", "--json")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["lines"] == 0


def test_the_same_file_twice_changes_nothing(run, db, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"id":"j{n}","qty":{n + 1}}}\n' for n in range(2500)))
    first = run("enqueue", db, "--file", source, "--json")
    again = run("enqueue", db, "--file", source, "--json")
    assert (first.returncode, again.returncode) == (0, 0)
    assert json.loads(first.stdout)["new"] == json.loads(again.stdout)["duplicate"] == 2500
    assert json.loads(run("stats", db, "--json").stdout)["pending"] == 2500


@pytest.mark.slow
def test_200_000_lines_stay_below_150_mb(db, tmp_path, environment):
    source = tmp_path / "big.jsonl"
    with source.open("w") as lines:
        lines.writelines(f'{{"id":"j{n}","qty":1,"payload":{{"customer":{n}}}}}\n' for n in range(200_000))
    script = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run([sys.executable, '-m', 'asyncqueue', *sys.argv[1:]]).returncode\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "sys.exit(code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, "enqueue", str(db), "--file", str(source), "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    summary, maxrss = ended.stdout.splitlines()
    assert json.loads(summary)["new"] == 200_000
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    assert int(maxrss) * unit_bytes < 150 * 1024 * 1024


def test_a_file_without_one_good_line_makes_no_database(run, db):
    ended = run("enqueue", db, "--file", "-", stdin='{"id":"a","qty":0}\nnot json\n')
    assert ended.returncode == 2
    assert "2 of 2 lines are invalid" in ended.stderr
    assert not Path(db).exists()


def test_a_file_with_conflicts_alone_exits_1(run, db):
    ended = run("enqueue", db, "--file", "-", stdin='{"id":"a","qty":1}\n{"id":"a","qty":2}\n')
    assert (ended.returncode, ended.stderr) == (1, "")
