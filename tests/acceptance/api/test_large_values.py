"""Values of very many lists are stored as they are, wherever a request has one."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.acceptance.http_calls import Http, ok

LISTS = f"[{'[],' * 60_000}0]"
VALUE = json.loads(LISTS)


async def send(http: Http, method: str, path: str, text: str) -> httpx.Response:
    return await http.client.request(method, path, content=text % {"lists": LISTS, "topic": http.topic})


async def sent(http: Http, method: str, path: str, text: str) -> Any:
    response = await send(http, method, path, text)
    assert response.is_success, response.text[:500]
    return response.json()


async def test_each_operation_with_a_value_stores_it(http: Http) -> None:
    job, topic = f"/jobs/{http.topic}/a", f"/topics/{http.topic}"
    put = await sent(http, "POST", "/jobs", '{"topic":"%(topic)s","id":"a","body":%(lists)s,"retain":60,"tags":["x"]}')
    assert put["body"] == VALUE
    assert (await sent(http, "PATCH", job, '{"body":{"k": %(lists)s}}'))["body"] == {"k": VALUE}
    await sent(http, "POST", "/jobs", '{"topic":"%(topic)s","id":"a","body":%(lists)s,"on_conflict":"append"}')
    [popped] = ok(await http.client.get(f"{topic}/pop", params={"wait": 0}))["jobs"]
    assert popped["body"] == [{"k": VALUE}, VALUE]
    puts = '{"result":[%(lists)s],"put":[{"topic":"%(topic)s","id":"b","retain":60,"body":%(lists)s}]}'
    await sent(http, "POST", f"{job}/finish", puts)
    assert ok(await http.client.get(job))["result"] == [VALUE]
    [popped] = ok(await http.client.get(f"{topic}/pop", params={"wait": 0}))["jobs"]
    assert popped["body"] == VALUE
    await sent(http, "POST", f"{topic}/finish", '{"jobs":[{"id":"b","result":%(lists)s}]}')
    assert ok(await http.client.get(f"/jobs/{http.topic}/b"))["result"] == VALUE
    batch = '{"jobs":[{"topic":"%(topic)s","id":"c","body":%(lists)s},{"topic":"%(topic)s","id":"d","body": {"x": 1}}]}'
    await sent(http, "POST", "/jobs/batch", batch)
    jobs = ok(await http.client.get(f"{topic}/pop", params={"wait": 0, "count": 2}))["jobs"]
    assert {one["id"]: one["body"] for one in jobs} == {"c": VALUE, "d": {"x": 1}}


async def test_a_schedule_stores_the_value_of_its_job(http: Http) -> None:
    path = f"/schedules/{http.topic}"
    await sent(http, "PUT", path, '{"topic":"%(topic)s","every":3600,"job":{"ttr":9,"body":%(lists)s}}')
    assert ok(await http.client.get(path))["job"] == {"ttr": 9, "body": VALUE}
    assert (await sent(http, "POST", f"{path}/run", ""))["body"] == VALUE
    await http.client.delete(path)


async def test_an_error_does_not_quote_it(http: Http) -> None:
    for method, path, field in (
        ("POST", "/jobs", "result"),
        ("POST", f"/jobs/{http.topic}/a/release", "body"),
        ("PUT", f"/topics/{http.topic}", "body"),
    ):
        response = await send(http, method, path, f'{{"{field}":%(lists)s,"ttr":9,"topic":"%(topic)s"}}')
        assert response.status_code == 422
        errors = {error["field"]: error for error in response.json()["errors"]}
        assert errors[f"body.{field}"].keys() == {"field", "message", "pointer"}
