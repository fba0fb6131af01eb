"""Two stores to move between, in every pair of kinds."""

import itertools

import pytest

PAIRS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]


@pytest.fixture
def new_url(request, tmp_path):
    """A function that names one fresh, empty database of a kind after the other."""
    numbers = itertools.count()

    def name_one(kind):
        if kind == "postgres":
            return request.getfixturevalue("new_postgres_url")()
        return str(tmp_path / f"queue-{next(numbers)}.db")

    return name_one


@pytest.fixture(params=PAIRS, ids="-to-".join)
def pair(request, new_url):
    """The addresses of a source and a target, both fresh."""
    source, target = request.param
    return new_url(source), new_url(target)
