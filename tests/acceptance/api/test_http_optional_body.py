"""Optional bodies: no body, `null` and `{}` mean the same to every operation that accepts one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.acceptance.http_calls import Http, refusal

CONTRACT = Path(__file__).resolve().parents[3] / "openapi" / "openapi.yaml"
OPTIONAL = [
    pytest.param(path, id=operation["operationId"])
    for path, operations in yaml.load(CONTRACT.read_bytes(), yaml.CSafeLoader)["paths"].items()
    for operation in operations.values()
    if "requestBody" in operation and not operation["requestBody"].get("required", False)
]


@pytest.mark.parametrize("path", OPTIONAL)
@pytest.mark.parametrize("body", [b"", b"null", b" \r\n\tnull ", b"{}"])
async def test_no_body_null_and_an_empty_object_are_the_same(http: Http, path: str, body: bytes) -> None:
    await http.reserve("held")
    await http.client.put("/schedules/held", json={"topic": http.topic, "cron": "0 0 1 1 *"})
    url = path.format(topic=http.topic, id="held", name="held")
    response = await http.post(url, content=body, headers={"Content-Type": "application/json"}, params=no_wait(path))
    is_accepted = response.is_success or response.json()["code"] == "push_not_found"  # nothing is pushed here
    assert is_accepted, response.text


@pytest.mark.parametrize("path", OPTIONAL)
@pytest.mark.parametrize("body", [b" ", b"nul", b"null null", b"[]", b"0", b"false", b'""'])
async def test_no_other_value_stands_for_no_body(http: Http, path: str, body: bytes) -> None:
    url = path.format(topic=http.topic, id="held", name="held")
    refusal(
        await http.post(url, content=body, headers={"Content-Type": "application/json"}, params=no_wait(path)), "body"
    )


def no_wait(path: str) -> dict[str, int]:
    """The query with which a pop does not wait."""
    return {"wait": 0} if path.endswith("/pop") else {}
