"""The inbox's OpenAPI description is true: requests made from it, and against it, are answered as it says."""

import json
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from receiver_tools import Receiver, check_whole, request, speak
from schemathesis import GenerationMode

from asyncqueue.job import PRODUCT
from asyncqueue.wire import REQUEST_BYTES_MAX
from asyncqueue.wire_batch import PATH as BATCH
from receiver.openapi import description

EXAMPLES = 150  # for each operation and mode
OPERATIONS = [f"{method} {path}" for path, methods in description(1)["paths"].items() for method in methods]
# An Idempotency-Key that differs from the id is a 422, a known id with another quantity a 409: a schema cannot say
# so, and what it allows is therefore not always accepted.
EXCLUDED = [schemathesis.checks.positive_data_acceptance]


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    path = tmp_path_factory.mktemp("openapi") / "inbox.db"
    served = Receiver(path)
    yield served
    assert served.process.poll() is None
    served.close()
    check_whole(path)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_is_as_described(receiver, operation, mode):
    api = schemathesis.openapi.from_url(f"http://127.0.0.1:{receiver.port}/openapi.json")
    method, path = operation.split()
    strategy = api[path][method.upper()].as_strategy(generation_mode=mode)
    seen = Counter()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
    )
    @given(case=strategy)
    def ask(case):
        seen[case.call_and_validate(excluded_checks=EXCLUDED).status_code] += 1

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # an operation without parameters cannot be asked wrongly
        assert "parameters" not in description(1)["paths"][path][method]
    else:
        assert seen
        assert 500 not in seen


async def test_the_description_is_served_and_names_the_real_limits(inbox):
    answer = await inbox.speak(request(b"", method="GET", path="/openapi.json", kind=None))
    assert answer.status == 200
    assert answer.json == description(REQUEST_BYTES_MAX)
    post = answer.json["paths"]["/inbox"]["post"]
    message = post["requestBody"]["content"]["application/json"]["schema"]
    assert message["properties"]["qty"] == {"type": "integer", "minimum": 1, "maximum": PRODUCT.qty.high}
    assert str(REQUEST_BYTES_MAX) in post["requestBody"]["description"]


async def test_every_path_of_the_description_answers_and_no_other_does(inbox):
    for path, methods in description(1)["paths"].items():
        answer = await inbox.speak(request(b"{}", method="PATCH", path=path.replace("{id}", "a")))
        taken = "GET, HEAD" if "get" in methods else "POST"
        if path == f"/inbox/{BATCH}":  # a message may be called so: GET shows it
            taken = "GET, HEAD, POST"
        assert (answer.status, answer.headers["allow"]) == (405, taken)
    listed = await inbox.speak(request(b"", method="GET", path="/nothing", kind=None))
    assert all(path in json.loads(listed.body)["detail"] for path in description(1)["paths"])
    assert (await speak(inbox.port, request(b"", method="GET", path="/openapi", kind=None))).status == 404
