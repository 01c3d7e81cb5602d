"""Dead, Consumers, Schedules, Events and Activity in a real Chromium."""

from __future__ import annotations

import re
import threading
import uuid

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.console.conftest import KeyedService, OpenPage
from tests.acceptance.console.job_pages import call
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
MANY = 1001


def bury(service: ServiceProcess, topic: str, job_id: str, error: str) -> None:
    call(service, "POST", "/jobs", {"topic": topic, "id": job_id})
    call(service, "POST", f"/topics/{topic}/pop?wait=5")
    call(service, "POST", f"/jobs/{topic}/{job_id}/bury", {"error": error})


def counts(service: ServiceProcess, topic: str) -> dict[str, int]:
    found: dict[str, int] = call(service, "GET", f"/topics/{topic}")["counts"]
    return {state: count for state, count in found.items() if count}


def test_a_redrive_of_an_error_leaves_out_what_died_after_its_preview(
    without_keys: ServiceProcess, open_page: OpenPage, topic: str
) -> None:
    for number in (1, 2):
        bury(without_keys, topic, f"early-{number}", f"HTTP 503 from host {number}")
    bury(without_keys, topic, "other", "TypeError: no such field")
    page = open_page(f"{without_keys.url}/console/dead?topics={topic}").page
    group = page.locator("[data-row]", has_text="HTTP 503 from host *")
    expect(group.locator(".group-count")).to_have_text("2")
    expect(group.get_by_role("link", name="early-1")).to_have_attribute("href", f"console/topics/{topic}/jobs/early-1")
    group.get_by_role("button", name="Redrive …").click()

    expect(page.get_by_role("heading", level=1)).to_have_text(f"Redrive 2 jobs of {topic}")
    expect(page.get_by_role("row", name="early-2")).to_contain_text("HTTP 503 from host 2")
    bury(without_keys, topic, "late", "HTTP 503 from host 3")
    page.get_by_role("button", name="Redrive 2 jobs").click()

    expect(page.get_by_role("status")).to_have_text(f"2 jobs of {topic} are ready again.")
    assert counts(without_keys, topic) == {"ready": 2, "dead": 2}
    assert call(without_keys, "GET", f"/jobs/{topic}/late")["state"] == "dead"


def test_many_jobs_are_cancelled_only_when_the_topic_is_typed(
    without_keys: ServiceProcess, open_page: OpenPage, topic: str
) -> None:
    jobs = [{"topic": topic, "id": f"j{number}", "ttl": 0.05} for number in range(MANY)]
    call(without_keys, "POST", "/jobs/batch", {"jobs": jobs[:1000]})
    call(without_keys, "POST", "/jobs/batch", {"jobs": jobs[1000:]})
    wait_until(lambda: counts(without_keys, topic) == {"dead": MANY}, 15, "all have expired")
    page = open_page(f"{without_keys.url}/console/dead/cancel?topic={topic}&reason=expired&typed={topic}").page
    expect(page.get_by_label("These are many")).to_have_value("")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Cancel 1,001 jobs of {topic}")
    expect(page.locator("[data-row]")).to_have_count(10)
    page.get_by_label("These are many").fill("another")
    page.get_by_role("button", name="Cancel 1,001 jobs").click()

    expect(page.get_by_role("alert")).to_contain_text("Nothing was done")
    assert counts(without_keys, topic) == {"dead": MANY}
    page.get_by_label("These are many").fill(topic)
    page.get_by_role("button", name="Cancel 1,001 jobs").click()
    page.wait_for_url("**/console/tasks/*")
    expect(page.locator("#task .pill")).to_have_text("done", timeout=15_000)
    expect(page.locator(".task-count")).to_contain_text("1,001 of 1,001")
    assert counts(without_keys, topic) == {}


def test_a_reader_sees_dead_jobs_and_why_the_buttons_do_nothing(
    with_keys: KeyedService, open_page: OpenPage, topic: str
) -> None:
    token = with_keys.keys.tokens["admin"]
    call(with_keys.service, "POST", "/jobs", {"topic": topic, "ttl": 0.05}, token)
    page = open_page(f"{with_keys.url}/console/dead?topics={topic}", token=with_keys.keys.tokens["read"]).page

    expect(page.get_by_role("button", name="Redrive …")).to_be_disabled()
    expect(page.get_by_role("button", name="Cancel …")).to_have_attribute("title", "needs scope admin")
    expect(page.get_by_text("A redrive or cancel of a group needs scope admin.")).to_be_visible()


def test_a_wrong_filter_is_explained_on_the_page(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{without_keys.url}/console/dead").page
    page.keyboard.press("/")
    page.keyboard.type("no spaces/allowed")
    page.keyboard.press("Enter")

    expect(page.get_by_role("alert")).to_contain_text("topics")
    expect(page.get_by_role("searchbox")).to_have_value("no spaces/allowed")


def test_consumers_that_wait_and_that_work(without_keys: ServiceProcess, open_page: OpenPage, topic: str) -> None:
    for job_id in ("one", "two", "three"):
        call(without_keys, "POST", "/jobs", {"topic": topic, "id": job_id})
    call(without_keys, "POST", f"/topics/{topic}/pop?wait=5&count=3&consumer=works-{topic}")
    waiting = threading.Thread(
        target=httpx.post,
        args=(f"{without_keys.url}/topics/{topic}/pop?wait=30&consumer=waits-{topic}",),
        kwargs={"timeout": 40},
    )
    waiting.start()
    try:
        page = open_page(f"{without_keys.url}/console/consumers?q={topic}").page
        expect(page.get_by_role("row", name=f"waits-{topic}")).to_contain_text("waits", timeout=12_000)
        row = page.get_by_role("row", name=f"works-{topic}")
        expect(row).to_contain_text(re.compile(r"works.*3.*in \d+ s", re.DOTALL), timeout=12_000)
        expect(row.get_by_role("link", name=topic, exact=True)).to_be_visible()
        row.get_by_role("link", name=f"works-{topic}").click()
        page.get_by_role("link", name="two", exact=True).click()
        expect(page.locator(".job-title")).to_contain_text(f"held by works-{topic}, handed out")
        page.get_by_text("Return to queue…").click()
        page.get_by_role("button", name="Return it").click()
        expect(page.get_by_role("status").first).to_contain_text("It was returned to the queue.")
        page.goto(f"{without_keys.url}/console/consumers/works-{topic}")
        page.get_by_text("Return to queue …").click()
        page.get_by_role("button", name="Return all").click()
        expect(page.get_by_role("status").first).to_contain_text("2 jobs were returned to the queue.")
    finally:
        call(without_keys, "POST", "/jobs", {"topic": topic})
        waiting.join()


def test_a_schedule_is_run_paused_resumed_and_deleted(
    without_keys: ServiceProcess, open_page: OpenPage, topic: str
) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    call(without_keys, "PUT", f"/schedules/{name}", {"topic": topic, "cron": "0 3 * * *", "zone": "Europe/Berlin"})
    watched = open_page(f"{without_keys.url}/console/schedules?prefix={name}")
    page = watched.page
    expect(page.get_by_role("row", name=name)).to_contain_text("cron 0 3 * * *")
    page.get_by_role("link", name=name).click()
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status")).to_contain_text(f"Put {name}:")
    assert counts(without_keys, topic) == {"ready": 1, "delayed": 1}

    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("It makes no runs.")).to_be_visible()
    assert call(without_keys, "GET", f"/schedules/{name}")["paused"] is True
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_have_text(f"Resumed {name}.")

    page.get_by_text("Delete …").click()
    page.get_by_label(f"Type {name}").fill("another")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was deleted")
    page.get_by_text("Delete …").click()
    page.get_by_label(f"Type {name}").fill(name)
    watched.expected_statuses.add(404)  # the page may read its state once more before it is left
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(f"Deleted {name}")
    assert httpx.get(f"{without_keys.url}/schedules/{name}", verify=NO_TLS).status_code == 404


@pytest.mark.parametrize(
    ("zone", "before", "after"),
    [("Europe/Berlin", "03:30:00 GMT+1", "03:30:00 GMT+2"), ("America/New_York", "22:30:00 GMT-4", "21:30:00 GMT-4")],
)
def test_runs_are_named_in_the_zones_of_the_schedule_and_of_the_reader_across_a_change_of_clocks(
    without_keys: ServiceProcess, open_page: OpenPage, zone: str, before: str, after: str
) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    definition = {"topic": f"t-{name}", "cron": "30 3 * * *", "zone": "Europe/Berlin"}
    call(without_keys, "PUT", f"/schedules/{name}", {**definition, "start_at": "2031-03-29T00:00:00Z"})
    page = open_page(f"{without_keys.url}/console/schedules/{name}", timezone_id=zone, locale="en-GB").page

    saturday = page.get_by_role("row", name="Sat 2031-03-29")
    expect(saturday).to_contain_text("03:30:00 +01:00")
    expect(saturday).to_contain_text("2031-03-29 02:30:00")
    expect(saturday).not_to_contain_text("clocks change")
    sunday = page.get_by_role("row", name="Sun 2031-03-30")
    expect(sunday).to_contain_text("03:30:00 +02:00")
    expect(sunday).to_contain_text("2031-03-30 01:30:00")
    expect(sunday).to_contain_text("clocks change")
    for row, local in ((saturday, before), (sunday, after)):
        title = row.locator("time").get_attribute("title") or ""
        assert re.sub(r"CET", "GMT+1", title.replace("CEST", "GMT+2").replace("EDT", "GMT-4")).find(local) > 0, title
        assert f"({zone})" in title


def events_page(service: ServiceProcess, open_page: OpenPage, topic: str) -> Page:
    call(service, "PUT", f"/topics/{topic}", {"events": 20})
    page = open_page(f"{service.url}/console/events?topics={topic}").page
    expect(page.locator("#stream-state")).to_have_text("live")
    return page


def test_events_appear_as_they_happen(without_keys: ServiceProcess, open_page: OpenPage, topic: str) -> None:
    page = events_page(without_keys, open_page, topic)
    expect(page.get_by_text("No events of these topics yet")).to_be_visible()
    bury(without_keys, topic, "one", "no such host \u202egro")

    rows = page.locator("#rows tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("dead")
    expect(rows.first).to_contain_text("no such host \\u202egro")
    expect(rows.first.get_by_role("link", name="one")).to_have_attribute("href", f"console/topics/{topic}/jobs/one")
    page.reload()
    expect(rows).to_have_count(3)
    expect(rows.last).to_contain_text("put")


def test_a_paused_stream_goes_on_where_it_was_and_says_what_is_missing(
    without_keys: ServiceProcess, open_page: OpenPage, topic: str
) -> None:
    page = events_page(without_keys, open_page, topic)
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/events/stream" in request.url else None)
    call(without_keys, "POST", "/jobs", {"topic": topic, "id": "first", "delay": 60})
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#stream-state")).to_have_text("paused")
    for number in range(25):  # the topic keeps 20
        call(without_keys, "POST", "/jobs", {"topic": topic, "id": f"later-{number}", "delay": 60})
    page.wait_for_timeout(600)
    expect(rows).to_have_count(1)
    assert streams == []
    page.get_by_role("button", name="Resume").click()

    expect(page.locator("#rows tr.gap")).to_have_text(
        f"5 events of {topic} are missing: the topic keeps fewer than came."
    )
    expect(page.locator("#rows tr[data-row]")).to_have_count(21)
    assert len(streams) == 1


def test_new_events_wait_while_somebody_has_a_row(
    without_keys: ServiceProcess, open_page: OpenPage, topic: str
) -> None:
    page = events_page(without_keys, open_page, topic)
    call(without_keys, "POST", "/jobs", {"topic": topic, "id": "first", "delay": 60})
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(1)
    page.keyboard.press("j")
    call(without_keys, "POST", "/jobs", {"topic": topic, "id": "second", "delay": 60})

    news = page.get_by_role("button", name="1 new")
    expect(news).to_be_visible()
    expect(rows).to_have_count(1)
    news.click()
    expect(rows).to_have_count(2)
    expect(news).to_be_hidden()


def test_the_stream_has_the_key_of_the_session(with_keys: KeyedService, open_page: OpenPage, topic: str) -> None:
    token = with_keys.keys.tokens["admin"]
    call(with_keys.service, "PUT", f"/topics/{topic}", {"events": 20}, token)
    page = open_page(f"{with_keys.url}/console/events?topics={topic}", token=with_keys.keys.tokens["read"]).page
    expect(page.locator("#stream-state")).to_have_text("live")
    call(with_keys.service, "POST", "/jobs", {"topic": topic, "id": "one"}, token)

    expect(page.get_by_role("link", name="one", exact=True)).to_be_visible()
    response = httpx.get(f"{with_keys.url}/console/events/stream", follow_redirects=False, verify=NO_TLS)
    assert (response.status_code, response.headers["location"]) == (
        303,
        "../../console/login?next=" + "console%2Fevents%2Fstream",
    )


def test_without_javascript_events_name_the_call(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{without_keys.url}/console/events", java_script_enabled=False).page

    expect(page.get_by_text("Events arrive live, which needs JavaScript.")).to_be_visible()
    expect(page.get_by_text("curl -sS").first).to_contain_text("/events?last=10")
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()


def test_activity_names_who_did_what_from_where(with_keys: KeyedService, open_page: OpenPage, topic: str) -> None:
    token = with_keys.keys.tokens["admin"]
    call(with_keys.service, "POST", "/jobs", {"topic": topic, "ttl": 0.05}, token)
    wait_until(lambda: call(with_keys.service, "GET", f"/topics/{topic}", None, token)["counts"]["dead"], 10, "it died")
    page = open_page(f"{with_keys.url}/console/dead?topics={topic}", token=token).page
    page.get_by_role("button", name="Redrive …").click()
    page.get_by_role("button", name="Redrive 1 job").click()
    expect(page.get_by_role("status")).to_contain_text("1 job of")
    page.goto(f"{with_keys.url}/console/activity?topics={topic}")

    row = page.locator("[data-row]").first
    expect(row).to_contain_text(f"redrove dead jobs of {topic}")
    expect(row).to_contain_text("admin")
    expect(row).to_contain_text("expired")
    expect(row).to_contain_text("console")
    expect(row.locator("td.num")).to_have_text("1")


def test_activity_goes_back_page_by_page(without_keys: ServiceProcess, open_page: OpenPage, topic: str) -> None:
    with httpx.Client(base_url=without_keys.url, verify=NO_TLS) as client:
        for number in range(105):
            assert client.put(f"/topics/{topic}", json={"events": number}).status_code == 200
    page = open_page(f"{without_keys.url}/console/activity?topics={topic}").page
    expect(page.locator("[data-row]")).to_have_count(100)
    page.get_by_role("link", name="Older").click()

    expect(page.locator("[data-row]")).to_have_count(5)
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("[data-row]")).to_have_count(100)
