"""Permissions: keys, scopes and topics, alike on the fast path and through ASGI."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deferd.contract.scopes import Scope
from tests.acceptance.api.keyed_service import KeysFile, audit_lines, call, keys_of_every_kind
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import WireResponse, connected, request
from tests.openapi_document import openapi_document
from tests.waiting import until, wait_until

both_entry_points = pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])
JOB = "/jobs/{topic}/j"
TOPIC = "/topics/{topic}"
CALLS: list[tuple[str, str, str, Any]] = [
    ("put", "POST", "/jobs", {"topic": "{topic}"}),
    ("put", "POST", "/jobs/batch", {"jobs": [{"topic": "{topic}"}]}),
    ("put", "PATCH", JOB, {"delay": 5}),
    ("cancel", "DELETE", JOB, None),
    ("read", "GET", JOB, None),
    ("read", "GET", "/topics", None),
    ("read", "GET", TOPIC, None),
    ("read", "GET", TOPIC + "/jobs", None),
    ("read", "GET", "/metrics", None),
    ("pop", "GET", TOPIC + "/pop?wait=0", None),
    ("pop", "POST", TOPIC + "/pop?wait=0", None),
    ("pop", "POST", TOPIC + "/finish", {"jobs": [{"id": "j"}]}),
    ("pop", "POST", JOB + "/finish", {}),
    ("pop", "POST", JOB + "/release", {}),
    ("pop", "POST", JOB + "/touch", {}),
    ("pop", "POST", JOB + "/bury", {}),
    ("admin", "PUT", TOPIC, {}),
    ("admin", "DELETE", TOPIC, None),
    ("admin", "POST", TOPIC + "/pause", None),
    ("admin", "POST", TOPIC + "/resume", None),
    ("read", "GET", TOPIC + "/groups", None),
    ("admin", "POST", TOPIC + "/groups/g/pause", None),
    ("admin", "POST", TOPIC + "/groups/g/resume", None),
    ("admin", "POST", TOPIC + "/redrive", None),
    ("admin", "GET", TOPIC + "/audit", None),
    ("admin", "POST", TOPIC + "/repair", None),
    ("admin", "GET", "/audit", None),
    ("admin", "POST", "/repair", None),
    ("admin", "GET", "/testing/clock", None),
    ("admin", "POST", "/testing/clock", {"advance": 0}),
    ("admin", "DELETE", "/testing/past", None),
]
SCHEDULES: list[tuple[str, str, str, Any]] = [
    ("put", "PUT", "/schedules/s-{topic}", {"topic": "{topic}", "every": 3600, "paused": True}),
    ("read", "GET", "/schedules", None),
    ("read", "GET", "/schedules/none", None),
    ("put", "DELETE", "/schedules/none", None),
    ("put", "POST", "/schedules/none/pause", None),
    ("put", "POST", "/schedules/none/resume", None),
    ("put", "POST", "/schedules/none/run", None),
    ("read", "GET", "/schedules/none/preview", None),
    ("read", "POST", "/schedules/preview", {"topic": "t", "every": 3600}),
    ("put", "PUT", "/batches/b-{topic}", {"on_end": {"topic": "{topic}"}}),
    ("read", "GET", "/batches", None),
    ("read", "GET", "/batches/none", None),
    ("cancel", "DELETE", "/batches/none", None),
]
"""Calls whose path has no topic; the topic of a schedule that exists is checked in test_http_keys_of_many_jobs.py."""
PAGES = ["/docs", "/openapi.json", "/docs/swagger-ui.css"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = keys_of_every_kind(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("all-of-ours", "admin", topics=("ours.*",))
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--keys-file", str(keys.path), "--log-format", "json", "--test-clock", "--trusted-proxy", "127.0.0.0/8")
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("keyed")) as service:
        yield service
        assert not [name for name, token in keys.tokens.items() if token in service.output()]


def filled_in(value: Any, topic: str) -> Any:
    """`value` with `{topic}` replaced by the topic."""
    if isinstance(value, dict):
        return {name: filled_in(inner, topic) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled_in(inner, topic) for inner in value]
    return value.replace("{topic}", topic) if isinstance(value, str) else value


async def send_api_call(
    service: ServiceProcess, api_call: tuple[str, str, str, Any], topic: str, token: str | None, *, through_asgi: bool
) -> WireResponse:
    _, method, path, body = api_call
    return await call(
        service, method, filled_in(path, topic), filled_in(body, topic), token=token, through_asgi=through_asgi
    )


def is_unauthorized(response: WireResponse) -> bool:
    refused = response.status == 401 and response.json()["code"] == "unauthorized"
    assert not refused or response.headers["www-authenticate"] == "Bearer"
    return refused


@both_entry_points
async def test_a_request_without_a_known_key_is_refused(
    service: ServiceProcess, topic: str, through_asgi: bool
) -> None:
    for api_call, token in itertools.product([*CALLS, *SCHEDULES], (None, "", "unknown", "x" * 2000)):
        response = await send_api_call(service, api_call, topic, token, through_asgi=through_asgi)
        assert is_unauthorized(response), api_call


@both_entry_points
async def test_a_key_allows_the_operations_of_its_scope_only(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    for api_call, scope in itertools.product([*CALLS, *SCHEDULES], Scope):
        response = await send_api_call(service, api_call, topic, keys.tokens[scope], through_asgi=through_asgi)
        if scope in (api_call[0], "admin"):
            assert response.status not in (401, 403), (api_call, response.body[:500])
        else:
            assert response.status == 403, api_call
            assert response.json()["code"] == "forbidden"
            assert f"key '{scope}' does not have scope {api_call[0]}" in response.json()["detail"]
            if "{topic}" in api_call[2] and api_call not in SCHEDULES:
                assert f"for topic '{topic}'" in response.json()["detail"]


@both_entry_points
async def test_a_key_is_for_its_topics_only(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    token = keys.tokens["all-of-ours"]
    for api_call in CALLS:
        if "{topic}" in f"{api_call[2]}{api_call[3]}":
            allowed = await send_api_call(service, api_call, f"ours.{topic}", token, through_asgi=through_asgi)
            refused = await send_api_call(service, api_call, topic, token, through_asgi=through_asgi)
            assert allowed.status not in (401, 403), api_call
            detail = f"key 'all-of-ours' does not have scope {api_call[0]} for topic '{topic}'"
            assert (refused.status, refused.json()["detail"]) == (403, detail)


@both_entry_points
async def test_one_topic_of_several_is_enough_to_refuse(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    token = keys.tokens["all-of-ours"]
    ours, theirs = f"ours.{topic}", f"theirs.{topic}"
    batch = {"jobs": [{"topic": ours, "id": "j"}, {"topic": theirs, "id": "j"}]}
    for method, path, body in (
        ("GET", f"/topics/{ours},{theirs}/pop?wait=0", None),
        ("POST", "/jobs/batch", batch),
    ):
        response = await call(service, method, path, body, token=token, through_asgi=through_asgi)
        assert response.status == 403
        assert f"for topic '{theirs}'" in response.json()["detail"]
    for name in (ours, theirs):  # nothing was stored
        stored = await call(service, "GET", f"/jobs/{name}/j", token=keys.tokens["read"])
        assert stored.status == 404


ABOUT_ALL = [one for one in CALLS if "{topic}" not in f"{one[2]}{one[3]}" and one[2] != "/topics"]


@both_entry_points
async def test_operations_on_all_topics_require_a_key_for_all_topics(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    for api_call in ABOUT_ALL:
        refused = await send_api_call(service, api_call, topic, keys.tokens["all-of-ours"], through_asgi=through_asgi)
        detail = f"key 'all-of-ours' does not have scope {api_call[0]} for all topics"
        assert (refused.status, refused.json()["detail"]) == (403, detail)


@both_entry_points
async def test_health_and_readiness_are_public(service: ServiceProcess, keys: KeysFile, through_asgi: bool) -> None:
    for path in ("/healthz", "/readyz"):
        for token in (None, "unknown", keys.tokens["pop"]):
            assert (await call(service, "GET", path, token=token, through_asgi=through_asgi)).status == 200


async def test_pages_require_a_key_with_scope_read(service: ServiceProcess, keys: KeysFile) -> None:
    for page in PAGES:
        assert is_unauthorized(await call(service, "GET", page))
        assert (await call(service, "GET", page, token=keys.tokens["put"])).status == 403
        async with httpx.AsyncClient(base_url=service.url, verify=NO_TLS, timeout=60) as client:  # the document is made
            shown = await client.get(page, headers={"Authorization": f"Bearer {keys.tokens['read']}"})
        assert shown.status_code == 200
        assert page != "/openapi.json" or shown.json() == openapi_document()


async def test_with_keys_the_site_of_a_page_does_not_matter(service: ServiceProcess, keys: KeysFile) -> None:
    elsewhere = ("Origin: https://shop.example.com", "Sec-Fetch-Site: cross-site")
    popped = await call(service, "GET", "/topics/empty/pop?wait=0", None, *elsewhere, token=keys.tokens["pop"])
    assert (popped.status, popped.json()) == (200, {"jobs": []})


@pytest.mark.parametrize("page", PAGES)
async def test_a_browser_may_send_the_token_as_a_password(service: ServiceProcess, keys: KeysFile, page: str) -> None:
    def basic(password: str) -> str:
        return "Authorization: Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()

    unauthorized = await call(service, "GET", page)
    assert "in a browser, enter the token as the password, with any name" in unauthorized.json()["detail"]
    async with httpx.AsyncClient(base_url=service.url, verify=NO_TLS) as client:
        challenges = (await client.get(page)).headers.get_list("www-authenticate")
        assert ["Basic", "Bearer"] == [challenge.split()[0] for challenge in challenges]
    assert 200 == (await call(service, "GET", page, None, basic(keys.tokens["read"]))).status
    assert 403 == (await call(service, "GET", page, None, basic(keys.tokens["put"]))).status
    for wrong in (basic(""), basic("unknown"), "Authorization: Basic ***", "Authorization: Basic"):
        assert is_unauthorized(await call(service, "GET", page, None, wrong))
    for path in ("/topics", "/metrics", "/nowhere"):  # credentials that a browser sends by itself must not give access
        refused = await call(service, "GET", path, None, basic(keys.tokens["admin"]))
        assert is_unauthorized(refused)
        assert "password" not in refused.json()["detail"]


async def test_unknown_paths_are_a_404_only_with_a_key(service: ServiceProcess, keys: KeysFile) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("PUT", "/jobs", 405), ("GET", "/jobs/t/j/pop", 404)):
        assert (await call(service, method, path, token=keys.tokens["put"])).status == status
        assert is_unauthorized(await call(service, method, path))


@both_entry_points
@pytest.mark.parametrize(
    "header",
    [
        "Authorization: {token}",
        "Authorization: Basic {token}",
        "Authorization: Bearer",
        "Authorization: Bearer{token}",
        "Authorization: Bearer {token}x",
        "Authorization: Bearer {token}\r\nAuthorization: Bearer {token}",
        "X-Api-Key: {token}",
    ],
)
async def test_a_key_sent_in_another_way_is_ignored(
    service: ServiceProcess, keys: KeysFile, header: str, through_asgi: bool
) -> None:
    sent = header.replace("{token}", keys.tokens["read"])
    assert is_unauthorized(await call(service, "GET", "/topics", None, sent, through_asgi=through_asgi))


@both_entry_points
async def test_the_name_of_the_scheme_is_case_insensitive(
    service: ServiceProcess, keys: KeysFile, through_asgi: bool
) -> None:
    sent = f"Authorization: bEARER  {keys.tokens['read']}"
    assert (await call(service, "GET", "/topics", None, sent, through_asgi=through_asgi)).status == 200


async def test_the_body_of_a_refused_request_is_not_read(service: ServiceProcess, keys: KeysFile) -> None:
    """Otherwise any client could keep the service busy with bodies."""
    for token, status in ((None, 401), (keys.tokens["pop"], 403)):
        response = await call(service, "POST", "/jobs", b"{ no json", token=token)
        assert response.status == status


async def test_the_key_is_checked_before_a_large_body_is_read(service: ServiceProcess, topic: str) -> None:
    """Otherwise clients without a key could make the service hold a body per connection."""
    raw = request("POST", "/jobs", {"topic": topic, "body": "x" * 500_000})
    async with connected(service.port) as wire:
        wire.send(raw[:-1000])
        assert is_unauthorized(await wire.read_response())
        wire.send(raw[-1000:], request("GET", "/healthz"))
        assert (await wire.read_response()).status == 200


async def test_a_large_body_of_a_known_key_is_read(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    body = {"topic": topic, "id": "j", "body": "x" * 500_000}
    assert (await call(service, "POST", "/jobs", body, token=keys.tokens["put"])).json()["body"] == body["body"]


@both_entry_points
async def test_lists_of_topics_show_a_key_only_its_topics(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    mine = [f"ours.{topic}.{n}" for n in range(5)]
    for name in [f"{prefix}.{topic}.{n}" for n in range(5) for prefix in ("a", "ours", "z")]:
        assert (await call(service, "POST", "/jobs", {"topic": name}, token=keys.tokens["put"])).status == 201

    for limit in (1, 2, 5, 1000):
        seen: list[str] = []
        cursor = ""
        while True:
            path = f"/topics?limit={limit}{cursor and f'&cursor={cursor}'}"
            page = (
                await call(service, "GET", path, token=keys.tokens["all-of-ours"], through_asgi=through_asgi)
            ).json()
            seen += [view["topic"] for view in page["topics"]]
            assert len(page["topics"]) <= limit
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert all(name.startswith("ours.") for name in seen)
        assert [name for name in seen if topic in name] == mine
    everything = (await call(service, "GET", "/topics", token=keys.tokens["read"])).json()["topics"]
    assert {f"a.{topic}.0", f"z.{topic}.4"} <= {view["topic"] for view in everything}


@both_entry_points
async def test_admin_actions_and_refusals_are_in_the_audit_log(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    def mine(subject: str | None = None) -> list[tuple[Any, ...]]:
        return [
            (record["key"], record["call"], record["client"], record["outcome"])
            for record in audit_lines(service)
            if record["topic"] == topic and record.get("subject") == subject
        ]

    async def send(method: str, path: str, token: str | None, body: Any = None) -> None:
        await call(service, method, path.replace("{topic}", topic), body, token=token, through_asgi=through_asgi)

    admin = keys.tokens["admin"]
    await send("POST", "/jobs", keys.tokens["put"], {"topic": topic})
    await send("POST", TOPIC + "/pause", admin)
    await send("POST", TOPIC + "/groups/customer-7/pause", admin)
    await send("POST", TOPIC + "/resume?nonsense=1", admin)
    await send("POST", TOPIC + "/repair", admin)
    await send("GET", TOPIC + "/audit", admin)
    await send("GET", TOPIC, admin)
    await send("POST", TOPIC + "/pause", keys.tokens["read"])
    await send("DELETE", TOPIC, "unknown")
    await send("GET", TOPIC, None)
    await send("POST", "/jobs", keys.tokens["all-of-ours"], {"topic": topic})
    await send("DELETE", TOPIC, admin)
    expected = [
        ("admin", "POST /topics/{topic}/pause", "127.0.0.1", "done"),
        ("admin", "POST /topics/{topic}/repair", "127.0.0.1", "done"),
        ("read", "POST /topics/{topic}/pause", "127.0.0.1", "forbidden"),
        (None, "DELETE /topics/{topic}", "127.0.0.1", "unauthorized"),
        (None, "GET /topics/{topic}", "127.0.0.1", "unauthorized"),
        ("all-of-ours", "POST /jobs", "127.0.0.1", "forbidden"),
        ("admin", "DELETE /topics/{topic}", "127.0.0.1", "done"),
    ]
    wait_until(lambda: len(mine()) >= len(expected), 10, "the audit log is written")
    assert mine() == expected
    assert mine("customer-7") == [("admin", "POST /topics/{topic}/groups/{group}/pause", "127.0.0.1", "done")]


async def test_a_line_of_the_audit_log_cannot_be_forged(service: ServiceProcess) -> None:
    await call(service, "GET", "/topics/x%0d%0a%7b%22logger%22:%22deferd.audit%22%7d")
    await call(service, "GET", "/nowhere%0a%7b%22logger%22:%22deferd.audit%22%7d")

    def found() -> list[Any]:
        return [record for record in audit_lines(service) if '{"logger"' in f"{record['topic']}{record['call']}"]

    wait_until(lambda: len(found()) == 2, 10, "the audit log is written")
    assert all(record["outcome"] == "unauthorized" for record in found())


def test_doctor_says_what_a_key_may_do(service: ServiceProcess, keys: KeysFile) -> None:
    def checks(token: str) -> tuple[int, dict[str, tuple[str, str]]]:
        ran = Shell(service.url).run("doctor", "--json", DEFERD_KEY=token)
        found = [json.loads(line) for line in ran.stdout.splitlines()]
        return ran.returncode, {one["check"]: (one["status"], one["text"]) for one in found}

    code, of_admin = checks(keys.tokens["all-of-ours"])
    assert (code, of_admin["key"]) == (0, ("ok", "all-of-ours may put, pop, cancel, read, admin in topics ours.*"))
    assert of_admin["clock"][0] == "ok"
    assert of_admin["store"] == ("ok", "it responds")
    code, of_put = checks(keys.tokens["put"])
    assert (code, of_put["key"][0], of_put["clock"][0]) == (0, "ok", "skipped")
    code, of_none = checks("no-key-at-all")
    assert (code, of_none["key"][0], [*of_none]) == (5, "failed", ["url", "key"])


@both_entry_points
async def test_behind_a_trusted_proxy_the_caller_is_recorded(
    service: ServiceProcess, keys: KeysFile, topic: str, through_asgi: bool
) -> None:
    caller = f"2001:db8::{1 + through_asgi}"
    proxied = f"X-Forwarded-For: 203.0.113.9, {caller}, 127.0.0.2"
    refused = await call(service, "GET", "/topics", None, proxied, token="no-key", through_asgi=through_asgi)
    assert refused.status == 401
    await until(
        lambda: any(line["client"] == caller for line in audit_lines(service)), "the refusal is in the audit log"
    )
    pop = (f"/topics/{topic}/pop?wait=0&consumer=c-{topic}", None, proxied)
    assert (await call(service, "GET", *pop, token=keys.tokens["pop"], through_asgi=through_asgi)).status == 200

    def addresses() -> list[str]:
        headers = {"Authorization": f"Bearer {keys.tokens['read']}"}
        found = httpx.get(f"{service.url}/consumers", headers=headers, verify=NO_TLS).json()["consumers"]
        return [address for one in found if one["name"] == f"c-{topic}" for address in one["addresses"]]

    await asyncio.to_thread(wait_until, lambda: addresses() == [caller], 10, "the consumer is known by its address")


def test_behind_a_trusted_proxy_failed_log_ins_are_those_of_the_caller(service: ServiceProcess) -> None:
    def status(caller: str) -> int:
        headers = {"X-Forwarded-For": caller, "Sec-Fetch-Site": "same-origin"}
        url = f"{service.url}/console/login"
        return httpx.post(url, data={"key": "no-key"}, headers=headers, verify=NO_TLS).status_code

    assert [status("198.51.100.1") for _ in range(12)][-1] == 429
    assert status("198.51.100.2") == 401
