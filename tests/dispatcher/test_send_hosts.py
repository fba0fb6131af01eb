"""A URL whose host nobody can look up is refused at once: no job's attempts are burnt on it."""

import pytest

from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    ["http://.../", "http://exa_mple..com/", "http://h h/", "http://a.b..c:80/x", f"http://{'a' * 64}.com/"],
)
def test_impossible_host_is_refused(url):
    with pytest.raises(ConfigError):
        HttpSender(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/",
        "http://127.0.0.1:8080/in",
        "http://[::1]:8080/",
        "https://m\u00fcnchen.example./x",
        "http://a_b.c/",
    ],
)
def test_possible_host_is_taken(url):
    assert HttpSender(url).endpoint.startswith("http")
