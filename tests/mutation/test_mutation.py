"""The breaker is checked itself: what it breaks, and that it knows a test that notices from one that does not."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutation.__main__ import EQUIVALENT, equivalents, key, memory_of
from tests.mutation.judge import CLOCK, likely_first, ordered
from tests.mutation.operators import mutants_of
from tests.mutation.reach import went_into
from tests.mutation.targets import TARGETS

ROOT = Path(__file__).parents[2]
LISTED = tomllib.loads(EQUIVALENT.read_text("utf-8"))


def broken(source):
    return {mutant.now for mutant in mutants_of(source.encode())}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = (a <= b)"}),
        ("x = a and b", {"x = (a or b)", "x = (a)", "x = (b)"}),
        ("x = a - 1", {"x = (a + 1)", "x = a - 2"}),
        ("x = not a", {"x = bool(a)"}),
        ("if a: x = b", {"if (not (a)): x = b"}),
        ("f(a)", {"pass"}),
        ("log.info(a)", set()),
        ("def f(): return a", {"def f(): return None"}),
        ("def f(a=True): pass", {"def f(a=False): pass"}),
        ("def f(): raise E(1)", {"def f(): pass"}),
        ("x = f(a, b=c)", {"x = f(a)"}),
        ("x: int | None = 1", {"x: int | None = 2"}),
        ("LAW = (A, B)", {"LAW = (A,)", "LAW = (B,)"}),
        ("Ask = dict[str, int]", set()),
        ("x = f'{a + 1}'", set()),
        ("self.x = y", {"pass"}),
        ('"""Says 1 < 2."""', set()),
    ],
)
def test_python_is_broken_in_one_place(source, expected):
    assert broken(source) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a WHERE b <= 1", {"SELECT a WHERE b < 1"}),
        ("SELECT a ->> 1 WHERE b <> c", {"SELECT a ->> 1 WHERE b = c", "SELECT a ->> 2 WHERE b <> c"}),
        ("SELECT a WHERE b AND c", {"SELECT a WHERE b OR c", "SELECT a WHERE b"}),
        ("SELECT a WHERE (b AND c) LIMIT 2", {"SELECT a WHERE (b OR c) LIMIT 2", "SELECT a WHERE (b ) LIMIT 2"}
         | {"SELECT a WHERE (b AND c) LIMIT 3"}),
        ("UPDATE t SET a = a + 1, b = NULL WHERE c", {"UPDATE t SET a = a, b = NULL WHERE c"}
         | {"UPDATE t SET a = a + 1 WHERE c"}),
        ("SELECT min(a) ORDER BY b DESC", {"SELECT max(a) ORDER BY b DESC", "SELECT min(a) ORDER BY b"}),
        ("INSERT OR IGNORE INTO", {"INSERT INTO"}),
        ("an error says <= 1", set()),
    ],
)  # fmt: skip
def test_sql_is_broken_in_one_place(sql, expected):
    assert broken(f'X = """{sql} """') == {" ".join(f'X = """{text} """'.split()) for text in expected}


PROGRAM = """
import json, sys, time
from pathlib import Path
from tests.mutation import judge as judges
from tests.mutation.operators import mutants_of

root, limit_s, slowest_s, only = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
judges._END_S = 0.5
tests, scratch = ("tests/test_law.py",), root.parent / "scratch"
judge = judges.Judge("receiver/law.py", tests, scratch, jobs=2, slowest_s=slowest_s, root=root, limit_s=limit_s)
judge.prepare()
mutants = mutants_of((root / "receiver/law.py").read_bytes())
mutants = [mutant for mutant in mutants if not only or mutant.now in only]
for verdict in judge.judged(mutants, time.monotonic() + 60):
    print(json.dumps([verdict.mutant.now, verdict.by]))
"""


@pytest.fixture
def verdicts(tmp_path):
    """Judge the mutants of a law, or some of them, by its tests; by what of each was broken."""

    def judged(law, tests, *only, limit_s, slowest_s=1.0):
        project = tmp_path / "project"
        for name, text in (("receiver/law.py", law), ("tests/test_law.py", tests), ("pyproject.toml", "")):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        (project / "receiver/__init__.py").touch()
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, project, str(limit_s), str(slowest_s), *only],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return dict(map(json.loads, ran.stdout.splitlines()))

    return judged


LAW = """
def is_due(at, now):
    return at <= now


def count(n):
    while n > 0:
        n -= 1
    return n
"""
TESTS = """
from receiver.law import count, is_due

def test_due():
    assert is_due(1, 2) and not is_due(3, 2)

def test_count():
    assert count(2) == 0
"""


def test_a_break_is_killed_by_a_test_or_by_the_clock_or_survives(verdicts):
    by = verdicts(LAW, TESTS, limit_s=3.0)
    assert by["return (at < now)"] is None, "no test asks for the boundary"
    assert by["return None"] is not None
    assert by["n -= 2"] == "tests/test_law.py::test_count" or by["n -= 2"] is None
    assert by["pass"] == CLOCK


LAW_THAT_HANGS = """
from collections import deque
from itertools import count

def drained(n):
    if n < 0:
        deque(count(), 0)
    return n + 1
"""
TESTS_THAT_HANG = """
import pytest
from receiver.law import drained

@pytest.fixture
def ended():
    yield
    while drained(1) != 2:
        pass

def test_drained(ended):
    while drained(0) != 1:
        pass
"""


def test_what_holds_the_interpreter_or_never_ends_takes_no_more_than_the_time_of_a_test(verdicts):
    by = verdicts(LAW_THAT_HANGS, TESTS_THAT_HANG, "if (n <= 0):", "return (n - 1)", limit_s=600, slowest_s=0.1)
    assert by == {"if (n <= 0):": CLOCK, "return (n - 1)": "tests/test_law.py::test_drained"}


LAW_ON_A_SERVER = "def is_due(at, now):\n    return at <= now\n"
TESTS_ON_A_SERVER = """
import time
import pytest
from receiver.law import is_due

@pytest.fixture(scope="module")
def server():
    time.sleep(0.3)

def test_due(server):
    assert is_due(1, 1)

def test_of_something_else():
    pass
"""


def test_what_a_file_shares_does_not_make_its_first_test_a_slow_one(verdicts):
    by = verdicts(LAW_ON_A_SERVER, TESTS_ON_A_SERVER, "return (at < now)", limit_s=20.0, slowest_s=0.2)
    assert by == {"return (at < now)": "tests/test_law.py::test_due"}


LAW_WITH_A_LIMIT = """
LIMITS = (3, 5)

def is_full(n):
    return n >= LIMITS[0]
"""
TESTS_OF_A_LIMIT = """
from receiver import law

def test_limit():
    assert law.LIMITS

def test_full():
    assert law.is_full(3)
"""


def test_a_constant_is_judged_also_by_those_who_reach_it_through_its_module(verdicts):
    by = verdicts(LAW_WITH_A_LIMIT, TESTS_OF_A_LIMIT, "LIMITS = (4, 5)", limit_s=20.0)
    assert by == {"LIMITS = (4, 5)": "tests/test_law.py::test_full"}


def test_likely_killers_come_first_and_then_one_file_after_the_other_the_faster_before():
    order = {"slow::a": 0.9, "slow::b": 0.1, "fast::a": 0.3, "fast::b": 0.2, "slow::killer": -99.5}
    items = [SimpleNamespace(nodeid=name, path=Path(name.partition("::")[0])) for name in order]
    named = [item.nodeid for item in ordered(items, order)]
    assert named == ["slow::killer", "fast::b", "fast::a", "slow::b", "slow::a"]


def test_some_likely_killers_are_asked_by_themselves_and_then_all_others():
    killers = {f"k{n}": -100.0 * n for n in range(1, 20)}
    likely, rest = likely_first(killers | {"a": 0.1, "b": 0.2})
    assert {"k19", "k18"} < likely.keys() < killers.keys()
    assert likely | rest == killers | {"a": 0.1, "b": 0.2}
    assert likely_first({"a": 0.1}) == ({"a": 0.1}, {})


@pytest.mark.parametrize(
    ("text", "is_part"),
    [("due <= 5", True), ("SELECT {b} WHERE due <= {now} AND x", False), ("{floor} WHERE due <= {now}", True)],
)
def test_text_is_part_of_another_also_as_a_template(text, is_part):
    assert went_into(text, "SELECT 1 WHERE due <= 5 LIMIT 1") is is_part


@pytest.mark.parametrize("file", sorted(LISTED))
def test_what_is_listed_as_equivalent_is_a_mutant_of_today(file):
    today = {key(mutant) for mutant in mutants_of((ROOT / file).read_bytes())}
    assert equivalents(file).keys() <= today


def test_no_two_targets_are_remembered_by_the_same_name():
    assert len({memory_of(Path("m"), target) for target in TARGETS}) == len(TARGETS)


def test_every_file_with_equivalents_and_every_judge_is_there():
    assert LISTED.keys() <= {target.file for target in TARGETS}
    assert all((ROOT / test).exists() for target in TARGETS for test in target.tests)
