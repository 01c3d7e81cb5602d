"""The client turns problem documents into the errors that they were made from."""

from __future__ import annotations

import pytest

from deferd.api import problem_details
from deferd.client.errors import UnexpectedAnswer
from deferd.client.requests import read_problem
from deferd.contract import errors
from tests.unit.errors_of_each_kind import OF_THE_CONTRACT


@pytest.mark.parametrize("error", OF_THE_CONTRACT, ids=lambda error: error.code)
def test_an_error_survives_the_round_trip_over_http(error: errors.DeferdError) -> None:
    response = problem_details.response(error)
    headers = {name.decode(): value.decode() for name, value in response.raw_headers}
    retry_after = headers.get("retry-after")
    read = read_problem(response.status_code, bytes(response.body), None if retry_after is None else int(retry_after))
    assert type(error) is type(read)
    assert str(error) == str(read)
    facts = {name: value for name, value in vars(error).items() if name != "timed_out"}
    assert facts == {name: value for name, value in vars(read).items() if name != "timed_out"}


FOREIGN = "status 500: GET http://h/x does not respond as a deferd service does: the response has"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"code":"internal_error","detail":"the log says more"}', "status 500: internal_error: the log says more"),
        (b'{"code":"new","detail":"' + b"x" * 5000 + b'"}', f"status 500: new: {'x' * 995}"),
        (b"<html>\n<p>oh \0no", f"{FOREIGN} text/html and begins with '<html> <p>oh no'"),
        (b"<p>" + b"x" * 5000, f"{FOREIGN} text/html and begins with '<p>{'x' * 97}'"),
        (
            b'{"code":"job_exists","detail":0}',
            FOREIGN + """ text/html and begins with '{"code":"job_exists","detail":0}'""",
        ),
        (b"", f"{FOREIGN} text/html and is empty"),
        (b"\xff\xfe", f"{FOREIGN} text/html and begins with '\ufffd\ufffd'"),
    ],
)
def test_other_content_is_quoted_by_the_error(content: bytes, shown: str) -> None:
    read = read_problem(500, content, None, b"text/html", "GET http://h/x")
    assert isinstance(read, UnexpectedAnswer)
    assert read.status == 500
    assert shown == str(read)


def test_an_error_may_name_a_state_of_a_later_service() -> None:
    problem = b'{"code":"job_exists","detail":"there is one","topic":"orders","id":"a","state":"parked"}'
    error = read_problem(409, problem, None)
    assert isinstance(error, errors.JobExists)
    assert error.state == "parked"
