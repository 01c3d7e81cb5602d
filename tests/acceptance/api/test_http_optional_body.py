"""Optional bodies: no body, `null` and `{}` mean the same to every operation that accepts one."""

from __future__ import annotations

import pytest

from tests.acceptance.http_calls import Http, refusal
from tests.openapi_document import openapi_document

OPTIONAL = [
    pytest.param(path, id=operation["operationId"])
    for path, operations in openapi_document()["paths"].items()
    for operation in operations.values()
    if "requestBody" in operation and not operation["requestBody"].get("required", False)
]
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", OPTIONAL)
async def test_no_body_null_and_an_empty_object_are_the_same(http: Http, path: str) -> None:
    for number, body in enumerate([b"", b"null", b" \r\n\tnull ", b"{}"]):
        each = Http(http.client, f"{http.topic}.{number}")
        await each.reserve("held")
        await each.client.put(f"/schedules/{each.topic}", json={"topic": each.topic, "cron": "0 0 1 1 *"})
        url = path.format(topic=each.topic, id="held", name=each.topic)
        response = await each.post(url, content=body, headers=JSON, params=no_wait(path))
        is_accepted = response.is_success or response.json()["code"] == "push_not_found"  # nothing is pushed here
        assert is_accepted, (body, response.text)


@pytest.mark.parametrize("path", OPTIONAL)
async def test_no_other_value_stands_for_no_body(http: Http, path: str) -> None:
    url = path.format(topic=http.topic, id="held", name="held")
    for body in (b" ", b"nul", b"null null", b"[]", b"0", b"false", b'""'):
        refusal(await http.post(url, content=body, headers=JSON, params=no_wait(path)), "body")


def no_wait(path: str) -> dict[str, int]:
    """The query with which a pop does not wait."""
    return {"wait": 0} if path.endswith("/pop") else {}
