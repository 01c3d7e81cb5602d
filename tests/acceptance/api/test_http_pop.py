"""Popping: GET and POST /topics/{topic}/pop."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.acceptance.http_calls import Http, ok, refusal
from tests.waiting import BUSY_S


@pytest.mark.parametrize("body", [None, {}], ids=["no body", "empty object"])
async def test_post_does_the_same_as_get(http: Http, body: dict[str, str] | None) -> None:
    await http.put_job("mine")
    response = await http.post(http.topic_path("pop"), params={"wait": 0, "consumer": "me"}, json=body)
    (job,) = ok(response)["jobs"]
    assert (job["id"], job["reserved_by"]) == ("mine", "me")
    assert response.headers["cache-control"] == "no-store"


async def test_post_accepts_no_fields(http: Http) -> None:
    await http.put_job("mine")
    response = await http.post(http.topic_path("pop"), params={"wait": 0}, json={"count": 1})
    assert refusal(response, "body.count") == "is not a known field"
    assert (await http.get_job("mine"))["state"] == "ready"


async def test_head_does_not_pop(http: Http) -> None:
    await http.put_job("mine")
    response = await http.client.head(http.topic_path("pop"))
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, POST"
    assert (await http.get_job("mine"))["state"] == "ready"


async def test_a_pop_without_a_job_is_empty_after_its_wait(http: Http) -> None:
    began = time.monotonic()
    assert await http.pop(wait=0.3) == []
    assert 0.29 < time.monotonic() - began < 0.3 + BUSY_S


BAD_PARAMETERS: list[tuple[dict[str, Any], str, str]] = [
    ({"wait": "61"}, "query.wait", "must be at most 60 seconds"),
    ({"wait": "-1"}, "query.wait", "must be at least 0 seconds"),
    ({"wait": "nan"}, "query.wait", "must be a finite number"),
    ({"wait": "soon"}, "query.wait", "must be a number of seconds"),
    ({"wait": ""}, "query.wait", "must be a number of seconds"),
    ({"wait": ["1", "2"]}, "query.wait", "is given more than once"),
    ({"count": "0"}, "query.count", "must be at least 1"),
    ({"count": "1001"}, "query.count", "must be at most 1000"),
    ({"count": "1.5"}, "query.count", "must be a whole number"),
    *(({"count": form}, "query.count", "must be a whole number") for form in ("1_0", "+1", " 1", "1.0", "01", "٣")),
    *(({"wait": form}, "query.wait", "must be a number") for form in ("1_0", "+0", "0 ", "01", ".5", "1.")),
    ({"ttr": "1_0.5"}, "query.ttr", "must be a number"),
    ({"ttr": "0.05"}, "query.ttr", "must be at least 0.1 seconds"),
    ({"ttr": "86401"}, "query.ttr", "must be at most 86400 seconds"),
    ({"limit": "3"}, "query.limit", "is not a known parameter"),
]


async def test_a_bad_parameter_is_refused(http: Http) -> None:
    await http.put_job("untouched")
    for query, field, message in BAD_PARAMETERS:
        assert refusal(await http.get(http.topic_path("pop"), params=query), field) == message, query
    assert (await http.get_job("untouched"))["state"] == "ready"


@pytest.mark.parametrize("query", ["wait=0", "wait=0&request_id=r", "request_id=r&wait=0"])
async def test_more_than_100_parameters_are_refused(http: Http, query: str) -> None:
    allowed = "&" * (99 - query.count("&"))
    assert (await http.get(f"{http.topic_path('pop')}?{allowed}{query}")).status_code == 200
    for more in (f"{allowed}&{query}", f"{query}&{allowed}", f"&{query}{allowed}"):
        response = await http.get(f"{http.topic_path('pop')}?{more}")
        assert refusal(response, "query") == "must have at most 100 parameters"


@pytest.mark.parametrize("name", ["consumer", "request_id"])
@pytest.mark.parametrize("value", ["", "a b", "x" * 256, "ä"])
async def test_consumer_and_request_id_are_shaped_like_ids(http: Http, name: str, value: str) -> None:
    assert "1 to 255" in refusal(await http.get(http.topic_path("pop"), params={name: value}), f"query.{name}")


@pytest.mark.parametrize(
    "topics", ["a,", ",a", "a,,b", "a,b c", ",".join(f"t{number}" for number in range(33)), "x" * 129]
)
async def test_a_bad_list_of_topics_is_refused(http: Http, topics: str) -> None:
    assert "must match" in refusal(await http.get(f"/topics/{topics}/pop"), "path.topic")


async def test_a_topic_named_twice_is_refused(http: Http) -> None:
    assert refusal(await http.get("/topics/a,b,a/pop"), "path.topic") == "must name each topic once"


async def test_32_topics_are_accepted(http: Http) -> None:
    topics = ",".join(f"{http.topic}.{number}" for number in range(32))
    response = await http.get(f"/topics/{topics}/pop", params={"wait": 0})
    assert ok(response) == {"jobs": []}
    assert response.headers["cache-control"] == "no-store"
