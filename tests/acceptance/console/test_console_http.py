"""The console as other programs see it: headers, sessions, guards, errors, caching."""

from __future__ import annotations

import contextlib
import html
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.acceptance.api.keyed_service import audit_lines
from tests.acceptance.console.conftest import OWN_PAGE, KeyedService, console_without_read
from tests.acceptance.console.job_pages import Producer
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
)


@contextlib.contextmanager
def log_in(service: KeyedService, name: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, verify=NO_TLS) as client:
        sent = {"key": service.keys.tokens[name], "next": "console/topics"}
        response = client.post("/console/login", data=sent, headers=OWN_PAGE)
        assert (response.status_code, response.headers["location"]) == (303, "../console/topics"), response.text
        yield client


@pytest.fixture
def reader(with_keys: KeyedService) -> Iterator[httpx.Client]:
    with log_in(with_keys, "read") as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/console/topics", "/console/login", "/console/nothing", "/console/static/x"])
def test_every_response_has_the_security_headers(without_keys: ServiceProcess, path: str) -> None:
    headers = httpx.get(without_keys.url + path, verify=NO_TLS).headers

    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


def test_static_files_are_kept_for_ever_and_compressed(without_keys: ServiceProcess) -> None:
    text = httpx.get(f"{without_keys.url}/", verify=NO_TLS).text
    links = re.findall(r'(?:src|href)="(console/static/[^"]+)"', text)
    assert len(links) >= 5
    size = 0  # of the files: what the page has depends on what other tests have put
    for link in links:
        response = httpx.get(f"{without_keys.url}/{link}", headers={"Accept-Encoding": "gzip"}, verify=NO_TLS)
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["content-encoding"] == "gzip"
        size += int(response.headers["content-length"])
    assert size < 60_000
    assert (
        httpx.get(f"{without_keys.url}/{links[0].replace('/static/', '/static/0')}", verify=NO_TLS).status_code == 404
    )


@pytest.mark.parametrize("path", ["/console/static/../app.py", "/console/static/0/%2e%2e/app.py", "/console/static/"])
def test_nothing_else_is_served_as_a_file(without_keys: ServiceProcess, path: str) -> None:
    assert httpx.get(without_keys.url + path, verify=NO_TLS).status_code == 404


def test_an_unchanged_region_gets_304_and_a_changed_one_its_content(without_keys: ServiceProcess) -> None:
    url = f"{without_keys.url}/console/topics?fragment=topics"
    first = httpx.get(url, verify=NO_TLS)
    again = httpx.get(url, headers={"If-None-Match": first.headers["etag"]}, verify=NO_TLS)
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert "<html" not in first.text

    httpx.post(f"{without_keys.url}/jobs", json={"topic": "changed", "body": 1, "delay": 60}, verify=NO_TLS)
    unchanged = {"If-None-Match": first.headers["etag"]}
    wait_until(lambda: httpx.get(url, headers=unchanged, verify=NO_TLS).status_code == 200, 15, "a change shows")


def test_one_request_brings_several_regions(without_keys: ServiceProcess) -> None:
    httpx.post(f"{without_keys.url}/jobs", json={"topic": "together", "delay": 600}, verify=NO_TLS).raise_for_status()
    url = f"{without_keys.url}/console/topics/together?fragment="
    counts, consumers = (httpx.get(url + region, verify=NO_TLS).text for region in ("counts", "consumers"))

    together = f'{counts}<div id="consumers" hx-swap-oob="innerHTML">{consumers}</div>'
    assert httpx.get(f"{url}counts,consumers", verify=NO_TLS).text == together


def test_errors_are_pages_and_those_of_the_api_stay_documents(without_keys: ServiceProcess) -> None:
    page = httpx.get(f"{without_keys.url}/console/nothing", verify=NO_TLS)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    wrong = httpx.delete(f"{without_keys.url}/", verify=NO_TLS)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert httpx.get(f"{without_keys.url}/console/topics/a%20b/jobs", verify=NO_TLS).status_code == 422
    for wrong_regions in ("wrong", "", "topics,wrong", "topics,topics"):
        assert (
            httpx.get(f"{without_keys.url}/console/topics?fragment={wrong_regions}", verify=NO_TLS).status_code == 404
        )
    assert httpx.get(f"{without_keys.url}/nothing", verify=NO_TLS).headers["content-type"] == "application/problem+json"


def test_a_rebound_name_is_refused_without_keys(without_keys: ServiceProcess) -> None:
    response = httpx.get(f"{without_keys.url}/", headers={"Host": "rebound.example.com"}, verify=NO_TLS)

    assert response.status_code == 403
    assert "--allowed-host" in response.text


def test_a_page_without_a_session_leads_to_the_log_in(with_keys: KeyedService) -> None:
    page = httpx.get(f"{with_keys.url}/console/topics?cursor=a", verify=NO_TLS)
    assert (page.status_code, page.headers["location"]) == (
        303,
        "../console/login?next=console%2Ftopics%3Fcursor%3Da",
    )
    region = httpx.get(f"{with_keys.url}/console/topics?fragment=topics", verify=NO_TLS)
    assert (region.status_code, region.headers["hx-redirect"]) == (401, "console/login?next=console%2Ftopics")
    assert httpx.get(f"{with_keys.url}/console/nothing", verify=NO_TLS).status_code == 303


def test_a_session_sees_pages_until_it_ends(with_keys: KeyedService, reader: httpx.Client) -> None:
    assert reader.get("/").status_code == 200
    cookie = reader.cookies["deferd_session"]
    assert reader.post("/console/logout", headers=OWN_PAGE).status_code == 303

    assert (
        httpx.get(f"{with_keys.url}/", headers={"Cookie": f"deferd_session={cookie}"}, verify=NO_TLS).status_code == 303
    )


OTHER_COOKIES = (
    'theme="a;', "tab;", "=1;", "a[0]=1;", "name with spaces=b;", "caf\xe9=1;", 'json={"a":"b"};', "$Version=1;",
    "deferd_session=old;", f"deferd_session={'x' * 43};", "deferd_session;", "__proto__=\\;",
)  # fmt: skip
"""What other programs on the host may set; a browser sends all of it in one line."""


@pytest.mark.parametrize("other", [*OTHER_COOKIES, "".join(OTHER_COOKIES)])
def test_other_cookies_of_the_host_do_not_hide_the_session(with_keys: KeyedService, other: str) -> None:
    with log_in(with_keys, "read") as client:
        cookies = f"{other} deferd_session={client.cookies['deferd_session']}; last=1".encode("latin-1")
        client.cookies.clear()
        headers = {b"Cookie": cookies, **{name.encode(): value.encode() for name, value in OWN_PAGE.items()}}
        assert client.get("/", headers=headers).status_code == 200
        assert client.post("/console/logout", headers=headers).status_code == 303
        assert client.get("/", headers=headers).status_code == 303


def test_cookies_may_come_in_several_fields(with_keys: KeyedService, reader: httpx.Client) -> None:
    session = reader.cookies["deferd_session"]
    headers = [("Cookie", "a=1"), ("Cookie", f"deferd_session={session}"), ("Cookie", "b=2")]
    assert httpx.get(f"{with_keys.url}/", headers=headers, verify=NO_TLS).status_code == 200


@pytest.mark.slow
def test_a_log_out_deletes_the_cookie_although_the_store_is_unavailable(with_keys: KeyedService) -> None:
    with log_in(with_keys, "read") as client:
        store = with_keys.service.store_pid()
        assert store is not None
        os.kill(store, signal.SIGSTOP)
        try:
            response = client.post("/console/logout", headers=OWN_PAGE)
            page = client.get("/console/login").text
        finally:
            os.kill(store, signal.SIGCONT)

    assert (response.status_code, response.headers["location"]) == (303, "../console/login")
    assert "deferd_session" not in client.cookies
    assert "The store can&#39;t be reached; if it still has the session, that ends within 12 hours." in page


def test_a_command_to_copy_has_the_prefix_of_the_proxy(without_keys: ServiceProcess) -> None:
    headers = {"X-Forwarded-Prefix": "/x/deferd", "Host": "localhost"}
    for query in ("", "?fragment=schedules"):
        page = httpx.get(f"{without_keys.url}/console/schedules{query}", headers=headers, verify=NO_TLS).text
        assert "http://localhost/x/deferd/schedules/every-five-minutes" in page


def test_a_removed_key_ends_its_sessions(with_keys: KeyedService) -> None:
    with_keys.keys.add("passing", "read")
    token = with_keys.keys.tokens["passing"]
    with httpx.Client(base_url=with_keys.url, verify=NO_TLS) as client:
        known = {"Authorization": f"Bearer {token}"}
        wait_until(lambda: client.get("/topics", headers=known).status_code == 200, 10, "the key is known")
        client.post("/console/login", data={"key": token}, headers=OWN_PAGE)
        assert client.get("/").status_code == 200
        with_keys.keys.remove("passing")

        wait_until(lambda: client.get("/").status_code == 303, 10, "the session has ended")


def test_a_page_names_the_scope_that_a_key_lacks(with_keys: KeyedService) -> None:
    with console_without_read(with_keys, "put") as client:
        response = client.get("/console/topics")

    assert response.status_code == 403
    assert "needs scope <code>read</code>" in response.text


def test_a_key_that_can_not_read_is_told_at_the_log_in(with_keys: KeyedService) -> None:
    sent = {"key": with_keys.keys.tokens["pop"]}
    response = httpx.post(f"{with_keys.url}/console/login", data=sent, headers=OWN_PAGE, verify=NO_TLS)
    assert (response.status_code, "set-cookie" in response.headers) == (403, False)
    assert "The key pop lacks scope read, which all pages need: it has pop." in response.text
    refused = ("POST /console/login", "pop", "forbidden")
    wait_until(
        lambda: refused in [(one["call"], one["key"], one["outcome"]) for one in audit_lines(with_keys.service)],
        10,
        "the refusal is in the audit log",
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://example.com"},
        {"Origin": "null"},
        {"Origin": "null", "Host": ""},
        {},
    ],
)
def test_a_write_of_another_site_is_refused(with_keys: KeyedService, headers: dict[str, str]) -> None:
    with log_in(with_keys, "read") as client:
        assert client.post("/console/logout", headers=headers).status_code == 403
        assert client.get("/").status_code == 200


def test_an_old_browser_writes_from_the_services_own_page(with_keys: KeyedService, reader: httpx.Client) -> None:
    origin = f"http://{urlsplit(with_keys.url).netloc}"

    assert reader.post("/console/logout", headers={"Origin": origin}).status_code == 303


def test_the_cookie_is_secure_over_https(with_keys: KeyedService) -> None:
    sent = {"key": with_keys.keys.tokens["read"]}
    headers = {**OWN_PAGE, "X-Forwarded-Proto": "https", "Referer": "https://a.example/x/deferd/console/login?next=b"}
    cookie = httpx.post(f"{with_keys.url}/console/login", data=sent, headers=headers, verify=NO_TLS).headers[
        "set-cookie"
    ]

    assert re.sub(r"=[\w-]{43};", "=...;", cookie) == (
        "deferd_session=...; HttpOnly; Path=/x/deferd/; SameSite=lax; Secure"
    )


@pytest.mark.parametrize(
    "after",
    [
        "https://example.com",
        "//example.com",
        "console/../..//example.com",
        "\\a",
        "/a",
        "console/topics/漢",
        "console/a b",
    ],
)
def test_the_log_in_leads_to_no_other_site(with_keys: KeyedService, after: str) -> None:
    sent = {"key": with_keys.keys.tokens["read"], "next": after}
    response = httpx.post(f"{with_keys.url}/console/login", data=sent, headers=OWN_PAGE, verify=NO_TLS)

    assert (response.status_code, response.headers["location"]) == (303, "../")


def test_a_page_with_any_name_comes_back_after_the_log_in(with_keys: KeyedService) -> None:
    asked = httpx.get(f"{with_keys.url}/console/topics/漢?q=漢", verify=NO_TLS)
    [after] = parse_qs(urlsplit(asked.headers["location"]).query)["next"]
    sent = {"key": with_keys.keys.tokens["read"], "next": after}
    response = httpx.post(f"{with_keys.url}/console/login", data=sent, headers=OWN_PAGE, verify=NO_TLS)

    assert response.headers["location"] == "../console/topics/%E6%BC%A2?q=%E6%BC%A2"


def test_attempts_are_audited_and_limited(with_keys: KeyedService) -> None:
    def attempt() -> int:
        return httpx.post(
            f"{with_keys.url}/console/login", data={"key": "no"}, headers=OWN_PAGE, verify=NO_TLS
        ).status_code

    assert attempt() in {401, 429}
    wait_until(lambda: attempt() == 429, 10, "attempts are limited")
    with log_in(with_keys, "read"):
        """The key that exists is admitted all the same."""
    outcomes = {(line["call"], line["key"], line["outcome"]) for line in audit_lines(with_keys.service)}

    assert {("POST /console/login", None, "unauthorized"), ("POST /console/login", "read", "done")} <= outcomes
    assert all(token not in with_keys.service.output() for token in with_keys.keys.tokens.values())


# Requests that a page sends


def test_an_action_without_ids_does_not_ignore_the_filter(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    with Producer(without_keys.url, "bulk-filter") as jobs:
        jobs.fail("a", "x", dead=True)
        for name in ("id", "error", "of_group"):
            data = {"action": "cancel", "state": "dead", name: "other", "cutoff": "2030-01-01T00:00:00Z"}
            refused = browser_like.post("/console/topics/bulk-filter/bulk", data=data)
            assert (refused.status_code, "Nothing was done" in refused.text) == (422, True)
        assert jobs.counts()["dead"] == 1


@pytest.mark.parametrize("count", ["1001", "9" * 5000, "many"])
def test_an_action_on_many_needs_the_name_of_their_topic(
    without_keys: ServiceProcess, browser_like: httpx.Client, topic: str, count: str
) -> None:
    with Producer(without_keys.url, topic) as jobs:
        jobs.fail("a", "", dead=True)
        data = {"topic": topic, "reason": "buried", "matched": count, "cutoff": "2030-01-01T00:00:00Z"}
        refused = browser_like.post("/console/dead/cancel", data=data)
        assert (refused.status_code, f"type {topic} to go on" in refused.text) == (200, True)
        assert jobs.counts()["dead"] == 1


def test_streams_are_not_shared_as_regions_are(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    with Producer(without_keys.url, "streams") as jobs, contextlib.ExitStack() as stack:
        jobs.http.put("/topics/streams", json={"events": 10}).raise_for_status()
        jobs.put("before", delay=600)
        after = jobs.http.get("/events/latest?topics=streams").json()["last_event_id"]
        path = f"/console/events/stream?topics=streams&fragment=newest&after={after}"
        lines = [stack.enter_context(browser_like.stream("GET", path)).iter_lines() for _ in range(2)]
        for each in lines:
            assert next(each).startswith("retry")
        jobs.put("a", delay=600)
        for each in lines:
            assert next(line for line in each if line.startswith("data")).find('"id":"a"') > 0


def test_a_body_that_is_too_deep_is_refused(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    with Producer(without_keys.url, "deep") as jobs:
        jobs.put("a", delay=600)
    for depth in (300, 2000, 100_000):
        data = {"body": "[" * depth + "]" * depth}
        saved = browser_like.post("/console/topics/deep/jobs/a/edit", data=data)
        assert saved.status_code == 422, depth
        settings = browser_like.post("/console/topics/deep/settings", data={"backoff": data["body"]})
        assert settings.status_code == 422, depth


def test_saving_the_form_of_a_topic_keeps_its_partitions(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    with Producer(without_keys.url, "spread-out") as jobs:
        jobs.http.put("/topics/spread-out", json={"partitions": 4}).raise_for_status()
        page = browser_like.get("/console/topics/spread-out")
        assert 'name="partitions" value="4"' in page.text
        for form, partitions in (
            ({"ttr": "30", "partitions": "4"}, 4),
            ({"ttr": "31", "partitions": ""}, 4),
            ({"ttr": "32", "partitions": "8"}, 8),
        ):
            assert browser_like.post("/console/topics/spread-out/settings", data=form).status_code in {200, 303}
            settings = jobs.http.get("/topics/spread-out").json()["settings"]
            assert (str(settings["ttr"]), settings["partitions"]) == (form["ttr"], partitions)
        for refused, why in (("2", "at least 8"), ("2.5", "whole number"), ("65", "64"), ("1_6", "must be a number")):
            saved = browser_like.post("/console/topics/spread-out/settings", data={"partitions": refused})
            assert (saved.status_code, why in saved.text) == (422, True), refused
        links = re.findall(r'(?:href|hx-get)="(console/topics/spread-out(?:\?[^"]*)?)"', saved.text)
        assert links
        assert [link for link in links if browser_like.get(f"/{html.unescape(link)}").status_code != 200] == []
        assert jobs.http.get("/topics/spread-out").json()["settings"]["partitions"] == 8


def test_a_group_is_paused_and_resumed_on_the_page_of_groups(browser_like: httpx.Client, jobs: Producer) -> None:
    limits = {"rate": {"count": 7200, "per": 3600}, "per_group": {"max_in_flight": 1}, "groups": {"vip": {"weight": 3}}}
    jobs.http.put(f"/topics/{jobs.topic}", json={"limits": limits}).raise_for_status()
    jobs.put("a", group="vip")
    jobs.put("b", group="vip", delay=100)
    jobs.put("c")
    path = f"/console/topics/{jobs.topic}"
    topic, page = browser_like.get(path).text, browser_like.get(f"{path}/groups").text
    words = "The topic: 7,200 per 1 h. Each group: at most 1 in flight. 1 group has limits of its own."
    assert words in topic
    assert words in page
    assert "The rate of its limits allows 7,200 an hour." in topic
    assert "weight 3" in page
    assert page.index("no group") < page.index(">vip<")
    paused = browser_like.post(f"{path}/groups/vip/pause", data={"order": "age"})
    assert (paused.status_code, paused.headers["location"]) == (303, f"../../../../../{path[1:]}/groups?order=age")
    assert f"{path[1:]}/groups/vip/resume" in browser_like.get(f"{path}/groups?order=age").text
    assert "is paused: none of its jobs is handed out" in browser_like.get(f"{path}/jobs/a").text
    browser_like.post(f"{path}/groups/vip/resume")
    assert f"{path[1:]}/groups/vip/pause" in browser_like.get(f"{path}/groups").text
    listed = browser_like.get(f"{path}/jobs?of_group=vip").text
    assert [f'{path[1:]}/jobs/{job_id}"' in listed for job_id in "abc"] == [True, True, False]


def test_a_large_body_is_shown_as_it_was_put(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    body = '{"n":1.5,"rest":[' + ",".join(["[1]"] * 50_000) + "]}"
    path = "/console/topics/large/jobs/a"
    with Producer(without_keys.url, "large") as jobs:
        content = f'{{"topic":"large","id":"a","delay":600,"body":{body}}}'
        jobs.http.post("/jobs", content=content, headers={"content-type": "application/json"}).raise_for_status()
    assert browser_like.get(f"{path}/raw/body").text == body
    page = browser_like.get(f"{path}/part/body").text
    assert "The first 64,000 characters" in page
    assert "1.5," in page
    edited = browser_like.get(f"{path}/edit")
    assert (edited.status_code, "[1]" in edited.text) == (200, False)


@pytest.mark.parametrize(("path", "status"), [("/favicon.ico", 200), ("/apple-touch-icon-precomposed.png", 303)])
def test_icons_that_browsers_ask_for_are_no_refusals(with_keys: KeyedService, path: str, status: int) -> None:
    response = httpx.get(with_keys.url + path, verify=NO_TLS)
    assert response.status_code == status
    if status == 200:
        assert (response.headers["content-type"], "<svg" in response.text) == ("image/svg+xml", True)
        assert response.headers["cache-control"] == "public, max-age=86400"
    unknown = f"/{path[1:5]}-{status}"
    assert httpx.get(with_keys.url + unknown, verify=NO_TLS).status_code == 401
    wait_until(lambda: f"GET {unknown}" in (one["call"] for one in audit_lines(with_keys.service)), 10, "it is logged")
    assert f"GET {path}" not in [one["call"] for one in audit_lines(with_keys.service)]


def test_pages_for_a_key_of_some_topics_cause_no_refusals(with_keys: KeyedService) -> None:
    with_keys.keys.add("some", "read", topics=("some.*",))
    token = with_keys.keys.tokens["some"]
    known = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=with_keys.url, verify=NO_TLS) as client:
        wait_until(lambda: client.get("/topics", headers=known).status_code == 200, 10, "the key is known")
        client.post("/console/login", data={"key": token}, headers=OWN_PAGE)
        system = client.get("/console/system")
        assert (system.status_code, "for keys that match all topics" in system.text) == (200, True)
        for typed in ("other/a", "other/ab", "oth"):
            assert client.get("/console/go", params={"q": typed}).status_code == 200
        for path in ("/", "/console/topics", "/console/dead", "/console/schedules", "/console/consumers"):
            assert client.get(path).status_code == 200
        assert client.get("/console/topics/other").status_code == 403
    refused = {"call": "GET /topics/{topic}", "outcome": "forbidden"}

    def refusals() -> list[dict[str, str]]:
        lines = [one for one in audit_lines(with_keys.service) if one["key"] == "some" and one["outcome"] != "done"]
        return [{name: one[name] for name in refused} for one in lines]

    wait_until(lambda: bool(refusals()), 10, "the last page was a refusal")
    assert refusals() == [refused]


def test_the_command_for_events_keeps_the_other_settings(without_keys: ServiceProcess) -> None:
    httpx.put(f"{without_keys.url}/topics/hello", json={"ttr": 77}, verify=NO_TLS).raise_for_status()
    page = httpx.get(f"{without_keys.url}/console/events", verify=NO_TLS).text
    command = html.unescape(re.findall(r'<pre class="code"[^>]*><code>(deferd topic .*?)</code>', page)[0])
    environment = {**os.environ, "DEFERD_URL": without_keys.url}
    arguments = [sys.executable, "-m", "deferd", *shlex.split(command)[1:]]
    subprocess.run(arguments, env=environment, check=True, timeout=20, capture_output=True)
    settings = httpx.get(f"{without_keys.url}/topics/hello", verify=NO_TLS).json()["settings"]
    assert (settings["ttr"], settings["events"]) == (77, 1000)


def test_the_activity_says_what_was_and_what_is_now(browser_like: httpx.Client, jobs: Producer) -> None:
    for settings in ({"ttr": 30}, {"ttr": 60, "max_jobs": 5}):
        jobs.http.put(f"/topics/{jobs.topic}", json=settings).raise_for_status()
    page = browser_like.get(f"/console/activity?topics={jobs.topic}").text
    [changed, _] = re.findall(r'<ul class="values".*?</ul>', page, re.DOTALL)
    assert " ".join(re.sub(r"<[^>]*>", " ", changed).split()) == "ttr 30 → 60 max_jobs 5"
