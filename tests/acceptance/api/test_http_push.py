"""Pushed topics over HTTP, with real processes: the API, several server processes, and kills."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trustme
from standardwebhooks.webhooks import Webhook

from tests.acceptance.conftest import PUSH_ALLOW
from tests.acceptance.http_calls import NO_TLS, Json
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.push_receiver import Received, Receiver, Reply, json_reply, receiver
from tests.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def service(pushing_service: ServiceProcess) -> ServiceProcess:
    return pushing_service


@pytest.fixture
async def api(service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield client


@pytest.fixture
async def target() -> AsyncIterator[Receiver]:
    async with receiver() as one:
        yield one


def push_to(target: Receiver, **fields: object) -> Json:
    return {"url": target.url, "secrets": [SECRET], "timeout": 5, **fields}


async def set_push(api: httpx.AsyncClient, topic: str, body: Json, status: int = 201) -> Json:
    response = await api.put(f"/topics/{topic}/push", json=body)
    assert response.status_code == status, response.text
    assert "MfKQ" not in response.text
    json: Json = response.json()
    return json


async def test_a_push_is_set_shown_replaced_and_removed(
    api: httpx.AsyncClient, topic: str, target: Receiver, service: ServiceProcess
) -> None:
    path = f"/topics/{topic}/push"
    assert (await api.get(path)).json()["code"] == "push_not_found"
    shown = await set_push(api, topic, push_to(target, headers={"X-Shop": "a1b2c3"}, rate=50))
    assert shown == {
        "topic": topic,
        "url": target.url,
        "secret_count": 1,
        "timeout": 5,
        "max_in_flight": 10,
        "rate": 50,
        "header_names": ["X-Shop"],
        "mode": "job",
    }
    assert (await api.get(path)).json() == shown
    assert (await api.get(f"/topics/{topic}")).json()["push"]["circuit"] == "closed"
    again = await set_push(api, topic, {"url": target.url, "max_in_flight": 3}, 200)
    assert (again["secret_count"], again["max_in_flight"], again["header_names"]) == (1, 3, [])
    assert (await api.get(f"/topics/{topic}/pop?wait=0")).json()["code"] == "topic_pushed"
    assert (await api.post(f"/topics/other,{topic}/pop?wait=0")).status_code == 409
    assert (await api.delete(path)).json() == {"topic": topic, "removed": True}
    assert (await api.delete(path)).status_code == 404
    assert (await api.get(f"/topics/{topic}/pop?wait=0")).json() == {"jobs": []}
    changes = (await api.get("/activity")).json()["activity"]
    removed, replaced, first = (one for one in changes if one.get("topic") == topic)
    assert [one["operation"] for one in (removed, replaced, first)] == ["remove_push", "set_push", "set_push"]
    was_and_now = {one["field"]: (one.get("was"), one.get("now")) for one in replaced["fields_changed"]}
    assert was_and_now == {
        "timeout": ("5", "30"),
        "max_in_flight": ("10", "3"),
        "rate": ("50", None),
        "headers": ("X-Shop", None),
    }
    assert {"field": "secrets", "now": "1 secret"} in first["fields_changed"]
    assert {"field": "secrets", "was": "1 secret"} in removed["fields_changed"]
    assert not [secret for secret in ("MfKQ", "a1b2c3") if secret in str(changes)]
    assert "MfKQ" not in service.output()


async def test_a_job_is_pushed_with_a_signature(api: httpx.AsyncClient, topic: str, target: Receiver) -> None:
    target.reply_with(json_reply({"ok": 1}))
    await set_push(api, topic, push_to(target, headers={"Authorization": "Bearer 7"}))
    put = {"topic": topic, "id": "a", "body": {"order": 1}, "retain": 60, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    await api.post("/jobs", json=put)
    await until(lambda: len(target.requests) == 1, "the request has arrived")
    (request,) = target.requests
    assert Webhook(SECRET).verify(request.body, request.headers) == {"order": 1}
    assert request.headers["authorization"] == "Bearer 7"
    assert request.headers["traceparent"] == put["traceparent"]
    while (job := (await api.get(f"/jobs/{topic}/a")).json())["state"] != "finished":
        await asyncio.sleep(0.01)
    assert job["result"] == {"ok": 1}
    metrics = (await api.get("/metrics")).text
    assert f'deferd_push_requests_total{{outcome="finished",topic="{topic}"}} 1.0' in metrics
    assert f'deferd_push_circuit_open{{topic="{topic}"}} 0.0' in metrics


async def test_the_end_of_a_job_is_a_webhook_if_the_topic_of_its_on_end_is_pushed(
    api: httpx.AsyncClient, topic: str, target: Receiver
) -> None:
    await set_push(api, f"{topic}.ended", push_to(target))
    on_end = {"topic": f"{topic}.ended", "id": "{id}-{outcome}"}
    await api.post("/jobs", json={"topic": topic, "id": "a", "on_end": on_end})
    [held] = (await api.get(f"/topics/{topic}/pop")).json()["jobs"]
    await api.post(f"/jobs/{topic}/a/finish", json={"receipt": held["receipt"], "result": {"closed": True}})
    await until(lambda: len(target.requests) == 1, "the request has arrived")
    (request,) = target.requests
    said = Webhook(SECRET).verify(request.body, request.headers)
    assert (said["id"], said["outcome"], said["result"]) == ("a", "finished", {"closed": True})
    assert request.headers["deferd-job-id"] == "a-finished"


async def test_a_test_reaches_the_target(api: httpx.AsyncClient, topic: str, target: Receiver) -> None:
    target.reply_with(Reply(418, b"short and stout"))
    await set_push(api, topic, push_to(target))
    tested = (await api.post(f"/topics/{topic}/push/test")).json()
    assert (tested["status"], tested["response"], tested["error"]) == (418, "short and stout", None)
    (request,) = target.requests
    assert request.headers["deferd-test"] == "true"
    assert request.headers["webhook-id"] == tested["message_id"]
    assert Webhook(SECRET).verify(request.body, request.headers) == {"test": True, "topic": topic}
    await set_push(api, topic, push_to(target, url="http://127.0.0.1:1/"), 200)
    failed = (await api.post(f"/topics/{topic}/push/test")).json()
    assert failed["status"] is None
    assert failed["error"].startswith("no connection to the target")
    assert (await api.post(f"/topics/{topic}-none/push/test")).json()["code"] == "push_not_found"


async def test_the_console_and_the_overview_show_a_target_that_fails_without_its_secrets(
    api: httpx.AsyncClient, topic: str, target: Receiver
) -> None:
    target.reply_with(Reply(503, b"down", {"retry-after": "60"}))
    await set_push(
        api, topic, push_to(target, url=f"{target.url}?token=7f3a9c", headers={"Authorization": "Bearer 7f3a"})
    )
    await api.post("/jobs", json={"topic": topic, "id": "a"})
    while (await api.get(f"/topics/{topic}")).json()["push"]["circuit"] != "open":
        await asyncio.sleep(0.01)
    await api.post("/jobs", json={"topic": topic, "id": "b"})
    page = (await api.get(f"/console/topics/{topic}")).text
    assert f"<code>{target.url}</code>" in page
    assert "circuit open" in page
    assert "the target responded with status 503: down" in page
    assert "This topic is pushed: it needs no consumers." in page
    fragment = (await api.get(f"/console/topics/{topic}?fragment=consumers")).text
    assert "it needs no consumers" in fragment
    assert not any(secret in page for secret in ("7f3a", "MfKQ"))
    (row,) = (await api.get("/overview", params={"name": topic})).json()["topics"]
    assert row["circuit"] == "open"
    assert "push fails" in (await api.get("/console/topics", params={"name": topic})).text


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"url": "https://10.0.0.1/"}, "body.url", "is not allowed by --push-allow"),
        ({"secrets": ["whsec_c2hvcnQ="]}, "body.secrets.0", "it has 5 bytes"),
    ],
)
async def test_wrong_input_is_named_and_nothing_is_stored(
    api: httpx.AsyncClient, topic: str, target: Receiver, *, fields: Json, field: str, message: str
) -> None:
    response = await api.put(f"/topics/{topic}/push", json=push_to(target) | fields)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["field"] == field
    assert message in error["message"]
    assert "c2hvcnQ" not in response.text
    assert (await api.get(f"/topics/{topic}/push")).status_code == 404
    assert (await api.get(f"/topics/{topic}")).status_code == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"secret": "whsec_hushhush"}, "body.secret"),
        ({"secrets": {"a": "whsec_hushhush"}}, "body.secrets"),
        ({"headers": {"authorization": "Bearer hushhush\n"}}, "body.headers.authorization"),
        ({"headers": {"authorization": 7, "x": ["hushhush"]}}, "body.headers.authorization"),
        ({"headers": "authorization: Bearer hushhush"}, "body.headers"),
        ({"headers": {"authorization: Bearer hushhush": ""}}, "body.headers"),
        ({"header": {"authorization": "Bearer hushhush"}}, "body.header"),
        ({"url": "https://shop:hushhush@hooks.example.com/"}, "body.url"),
        ({"url": "https://shop:hushhush/"}, "body.url"),
        ({"url": ["https://shop:hushhush@hooks.example.com/"]}, "body.url"),
        ({"url": "https://hooks.example.net/services/hushhush"}, "body.url"),
        ({"max_in_flight": 0, "secret": "hushhush"}, "body.max_in_flight"),
    ],
)
async def test_an_error_quotes_nothing_that_may_be_a_secret(
    api: httpx.AsyncClient, topic: str, target: Receiver, *, fields: Json, field: str
) -> None:
    response = await api.put(f"/topics/{topic}/push", json=push_to(target) | fields)
    assert response.status_code == 422, response.text
    assert field in [error["field"] for error in response.json()["errors"]]
    assert "hushhush" not in response.text
    assert SECRET not in response.text


async def test_an_error_quotes_no_body_that_is_not_an_object(api: httpx.AsyncClient, topic: str) -> None:
    response = await api.put(f"/topics/{topic}/push", json=["whsec_hushhush"])
    assert response.status_code == 422
    assert "hushhush" not in response.text


async def test_an_error_quotes_the_value_of_a_field_without_secrets(
    api: httpx.AsyncClient, topic: str, target: Receiver
) -> None:
    response = await api.put(f"/topics/{topic}/push", json=push_to(target) | {"max_in_flight": 0})
    assert [error["value"] for error in response.json()["errors"]] == [0]


async def test_a_service_that_may_push_nowhere_says_how_to_change_that(
    shared_service: ServiceProcess, topic: str, target: Receiver
) -> None:
    async with httpx.AsyncClient(base_url=shared_service.url, trust_env=False, verify=NO_TLS) as api:
        response = await api.put(f"/topics/{topic}/push", json=push_to(target))
    assert response.status_code == 422
    assert "start the service with --push-allow" in response.json()["detail"]


@pytest.mark.slow
async def test_certificates_are_verified(tmp_path: Path, topic: str) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    for flags, received in (((), 0), (("--push-ca-file", str(file)), 1)):
        async with receiver(context) as target:
            with running_service(*PUSH_ALLOW, *flags, data_dir=tmp_path / f"data{received}") as service:
                async with httpx.AsyncClient(base_url=service.url, trust_env=False, verify=NO_TLS) as api:
                    await set_push(api, topic, push_to(target))
                    tested = (await api.post(f"/topics/{topic}/push/test", timeout=30)).json()
            assert len(target.requests) == received, tested
            assert (tested["status"] == 200) == bool(received)
            assert received or "certificate" in tested["error"]


@pytest.mark.slow
async def test_server_processes_never_push_a_job_twice_at_a_time_and_a_kill_means_a_redelivery_after_ttr(
    tmp_path: Path, topic: str
) -> None:
    jobs, ttr_s = 200, 3
    under_way: Counter[str] = Counter()
    doubles: list[str] = []

    async def respond(request: Received) -> Reply:
        under_way[request.job_id] += 1
        if under_way[request.job_id] > 1:
            doubles.append(request.job_id)
        try:
            await asyncio.sleep(0.02)
        finally:
            under_way[request.job_id] -= 1
        return Reply()

    async with receiver() as target:
        target.respond = respond
        with running_service(*PUSH_ALLOW, "--workers", "2", data_dir=tmp_path) as service:
            async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as api:
                await set_push(api, topic, push_to(target, max_in_flight=20))
                await api.post(
                    "/jobs/batch", json={"jobs": [{"topic": topic, "id": f"j{at}", "ttr": ttr_s} for at in range(jobs)]}
                )
                await until(lambda: len(target.requests) > 30, "pushing is under way")
                target.hang()
                before = len(target.requests)
                await until(lambda: target.under_way == 20, "all requests hang")
                await asyncio.to_thread(service.kill_server_processes)
                await until(lambda: target.under_way == 0, "the connections of the killed ones are closed")
                lost = {one.job_id: one for one in target.requests[before:]}
                target.respond = respond

                async def counts() -> Json:
                    json: Json = (await api.get(f"/topics/{topic}")).json()["counts"]
                    return json

                while any((await counts()).values()):
                    await asyncio.sleep(0.05)
                report = (await api.get(f"/topics/{topic}/audit")).json()
        assert doubles == []
        assert set(target.ids) == {f"j{at}" for at in range(jobs)}
        again = [one for one in target.requests if int(one.headers["deferd-attempt"]) > 1]
        assert {one.job_id for one in again} <= set(lost) | set(target.ids)
        for one in again:
            if one.job_id in lost and one is not lost[one.job_id]:
                assert one.at_s - lost[one.job_id].at_s >= ttr_s - 0.5
        assert report["findings"] == []


async def test_a_service_that_stops_ends_its_requests_first(tmp_path: Path, topic: str) -> None:
    async with receiver() as target:

        async def slowly(_request: Received) -> Reply:
            await asyncio.sleep(0.5)
            return Reply()

        target.respond = slowly
        with running_service(*PUSH_ALLOW, data_dir=tmp_path) as service:
            async with httpx.AsyncClient(base_url=service.url, trust_env=False, verify=NO_TLS) as api:
                await set_push(api, topic, push_to(target))
                await api.post("/jobs", json={"topic": topic, "id": "a"})
                await until(lambda: target.under_way == 1, "the request is under way")
            assert await asyncio.to_thread(service.stop) == 0
            assert target.closed == 0
            await asyncio.to_thread(service.start)
            async with httpx.AsyncClient(base_url=service.url, trust_env=False, verify=NO_TLS) as api:
                assert (await api.get(f"/jobs/{topic}/a")).status_code == 404
        assert len(target.requests) == 1
