"""What a service with masks shows beyond the pages of jobs: events, groups of dead jobs, alerts, filters; and to a key
with a rate limit."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator

import httpx
import pytest

from deferd.engine.inspection.normalized_errors import normalized
from tests.acceptance.console.conftest import OWN_PAGE, KeyedService, console
from tests.acceptance.console.job_pages import SECRETS, Producer
from tests.acceptance.console.test_console_jobs_http import fields_of, preview_of, seen
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import wait_until

SECRET = SECRETS[0]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that masks passwords, with dead jobs whose errors quote theirs, and one without an error."""
    with running_service("--console-mask", "password", data_dir=tmp_path_factory.mktemp("masks")) as service:
        with Producer(service.url, "t") as jobs:
            jobs.http.put("/topics/t", json={"events": 100}).raise_for_status()
            for job_id in ("why", "b"):
                jobs.fail(job_id, f"no user {SECRET}", dead=True, body={"password": SECRET})
            jobs.fail("plain", "", dead=True, body={"password": SECRET})
        yield service


@pytest.fixture
def browser_like(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers=OWN_PAGE, timeout=10, verify=NO_TLS) as client:
        yield client


def test_no_page_has_a_part_of_the_value(browser_like: httpx.Client) -> None:
    wait_until(lambda: "died in the last hour" in browser_like.get("/").text, 15, "Now has the alert")
    for path in ("", "console/dead", "console/events", "console/topics/t/jobs?state=dead", "console/topics/t/jobs/why"):
        page = html.unescape(browser_like.get(f"/{path}").text)
        assert "hunter" not in page, path
        assert "•••••" in page or path == "console/events", path


def test_the_stream_has_no_errors(service: ServiceProcess, browser_like: httpx.Client) -> None:
    latest = browser_like.get("/events/latest", params={"limit": 1000}).json()
    assert SECRET in str(latest)
    received = ""
    after = latest["last_event_id"]
    with browser_like.stream("GET", "/console/events/stream", params={"after": after}) as stream:
        with Producer(service.url, "t") as jobs:
            jobs.fail("later", f"no user {SECRET}", dead=True, body={"password": SECRET})
        for line in stream.iter_lines():
            received += line
            if "•••••" in received:
                break
    assert SECRET not in received


def test_a_group_with_an_error_has_no_buttons(browser_like: httpx.Client) -> None:
    page = browser_like.get("/console/dead").text
    masked, plain = sorted(page.split('<li class="group"')[1:], key=lambda group: "no error text" in group)
    assert masked.count('disabled title="its error is masked"') == 2
    assert "can't name this group to the API" in html.unescape(masked)
    assert "disabled" not in plain


@pytest.mark.parametrize("action", ["redrive", "cancel"])
def test_a_guess_of_a_masked_value_is_not_confirmed(browser_like: httpx.Client, action: str) -> None:
    """Two jobs have the right one in their error: pages and actions are refused as those of a wrong one."""
    right, wrong = (f"no user {normalized(value)}" for value in (SECRET, SECRET.replace("hunter", "fisher")))
    fields = {"topic": "t", "reason": "buried", "matched": "2", "cutoff": "2099-01-01T00:00:00.000Z"}

    def seen(error: str) -> list[tuple[int, str]]:
        asked = [
            browser_like.get(f"/console/dead/{action}", params={**fields, "error": error}),
            browser_like.post(f"/console/dead/{action}", data={**fields, "error": error}),
            browser_like.post(f"/console/dead/{action}", data={**fields, "error": error, "matched": "", "typed": "t"}),
        ]
        pages = [one.text.replace("fisher", "hunter") for one in asked]
        pages = [re.sub(r"<time.*?</time>|data-now=\S+", "TIME", page) for page in pages]
        return [(one.status_code, page) for one, page in zip(asked, pages, strict=True)]

    assert seen(right) == seen(wrong)
    assert all(status == 422 and "does not search errors" in page for status, page in seen(right))
    assert browser_like.get("/jobs/t/why").json()["state"] == "dead"


def test_a_group_without_an_error_can_be_redriven(service: ServiceProcess, browser_like: httpx.Client) -> None:
    with Producer(service.url, "shown") as jobs:
        jobs.fail("a", "", dead=True, body={"password": SECRET})
        group = {"topic": "shown", "reason": "buried"}
        page = browser_like.get("/console/dead/redrive", params=group).text
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', page))
        assert browser_like.post("/console/dead/redrive", data=fields).status_code == 303
        assert jobs.counts()["ready"] == 1


def test_errors_are_not_searched(browser_like: httpx.Client) -> None:
    for error in (SECRET, "nothing"):
        page = browser_like.get("/console/topics/t/jobs", params={"state": "dead", "error": error}).text
        assert "does not search errors" in page
        assert 'data-row="' not in page
    data = {"action": "redrive", "state": "dead", "error": SECRET, "all": "1"}
    refused = browser_like.post("/console/topics/t/bulk/preview", data=data)
    assert (refused.status_code, "does not search errors" in refused.text) == (422, True)


@pytest.mark.parametrize("action", ["redrive", "cancel"])
def test_the_jobs_of_a_group_with_an_error_are_neither_listed_nor_acted_on(
    browser_like: httpx.Client, action: str
) -> None:
    for error in (normalized(f"no user {SECRET}"), "nothing"):
        group = {"state": "dead", "reason": "buried", "group": error}
        page = browser_like.get("/console/topics/t/jobs", params=group).text
        assert "does not search errors" in page
        assert 'data-row="' not in page
        data = {**group, "action": action, "all": "1", "cutoff": "2099-01-01T00:00:00.000Z", "typed": "t"}
        for path in ("bulk/preview", "bulk"):
            refused = browser_like.post(f"/console/topics/t/{path}", data=data)
            is_explained = "does not search errors" in refused.text or "Nothing was done" in refused.text
            assert (refused.status_code, is_explained) == (422, True), (path, error)
    assert browser_like.get("/jobs/t/why").json()["state"] == "dead"


def test_filters_of_actions_have_no_part_of_the_value(browser_like: httpx.Client) -> None:
    """What a key with another scope has redriven or purged by its error."""
    error = f"no user {SECRET}"
    group = {"reason": "buried", "error": normalized(error)}
    with Producer(str(browser_like.base_url), "swept") as jobs:
        jobs.fail("a", error, dead=True, body={"password": SECRET})
        purged = jobs.http.request("DELETE", "/topics/swept", params={"state": "dead", **group})
        assert purged.raise_for_status().json()["removed"] == 1
        jobs.fail("b", error, dead=True, body={"password": SECRET})
        task = jobs.http.post("/topics/swept/redrive", json={**group, "as_task": True}).raise_for_status().json()
        wait_until(lambda: (jobs.get("b") or {})["state"] == "ready", 10, "the task redrives")

    def activity() -> str:
        return html.unescape(browser_like.get("/console/activity?topics=swept").text)

    wait_until(lambda: activity().count("•••••") == 2, 10, "both are listed, without their errors")
    for path in ("console/activity", f"console/tasks/{task['id']}", "console/tasks"):
        page = html.unescape(html.unescape(browser_like.get(f"/{path}").text))
        assert "hunter" not in page, path


# A key with a rate limit


@contextlib.contextmanager
def producer(service: KeyedService, topic: str) -> Iterator[Producer]:
    with Producer(service.url, topic, service.keys.tokens["operator"]) as jobs:
        yield jobs


@pytest.mark.slow
def test_no_region_has_the_value_when_the_limit_is_used_up(masking: KeyedService) -> None:
    with producer(masking, "refused") as jobs:
        jobs.fail("dead", f"no user {SECRET}", dead=True, body={"password": SECRET})
        jobs.fail("later", f"no user {SECRET}", body={"password": SECRET})
    statuses = set()
    with console(masking, "slow") as client:
        for number in range(60):
            job_id = ("dead", "later")[number % 2]
            for path in (f"jobs/{job_id}?fragment=why&n={number}", f"jobs/{job_id}", "jobs?state=dead&fragment=rows"):
                response = client.get(f"/console/topics/refused/{path}")
                statuses.add(response.status_code)
                assert SECRET not in html.unescape(response.text), (number, path)
    assert statuses >= {200, 429}


def cancel_all(client: httpx.Client, topic: str, ids: list[str]) -> tuple[str, httpx.Response]:
    """Preview a cancel of these jobs and confirm it: the preview, and the response."""
    preview = preview_of(client, topic, {"action": "cancel", "ids": ids})
    fields = fields_of(preview.text, f"console/topics/{topic}/bulk")
    return preview.text, client.post(f"/console/topics/{topic}/bulk", data=fields)


def test_a_selection_larger_than_the_rate_limit_can_be_undone(masking: KeyedService) -> None:
    ids = [f"j{number}" for number in range(60)]
    with producer(masking, "many") as jobs, console(masking, "limited") as client:
        jobs.put(*ids, delay=3600)
        preview, done = cancel_all(client, "many", ids)
        assert "You can undo it" in preview
        assert "Undo puts 60 jobs back as they were." in seen(client, done)
        assert jobs.counts()["delayed"] == 0


def test_a_list_with_masks_leaves_room_for_actions(masking: KeyedService) -> None:
    """It reads no more than one without masks."""
    with producer(masking, "failing") as jobs, console(masking, "lister") as client:
        for number in range(30):
            jobs.fail(f"j{number}", "mailbox full", dead=True, body={"password": SECRET})
        for number in range(3):
            page = client.get(f"/console/topics/failing/jobs?state=dead&n={number}")
            assert page.status_code == 200
            assert "mailbox full" not in page.text
            assert "•••••" in page.text
        _, done = cancel_all(client, "failing", ["j1", "j2"])
        assert "2 jobs were cancelled. This can't be undone." in seen(client, done)
