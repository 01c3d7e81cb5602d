"""Times in a real Chromium: read and typed in one zone, which is named, and never there twice."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.console.conftest import OpenPage
from tests.acceptance.console.job_pages import Producer, call
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow
BERLIN = {"timezone_id": "Europe/Berlin", "locale": "en-GB"}
SEVEN = re.compile(r"2035-01-31 19:00:00 (CET|GMT\+1) \(2035-01-31 18:00:00 UTC\)")


@pytest.fixture
def root(without_keys: ServiceProcess, topic: str) -> str:
    return f"{without_keys.url}/console/topics/{topic}/jobs"


def due_at(jobs: Producer, job_id: str) -> str:
    return str((jobs.get(job_id) or {})["due_at"])


def test_a_due_time_is_typed_in_the_zone_of_the_reader_and_shown_before_it_is_set(
    jobs: Producer, root: str, open_page: OpenPage
) -> None:
    jobs.put("j", delay=600)
    before = due_at(jobs, "j")
    watched = open_page(f"{root}/j", **BERLIN)
    watched.expected_statuses.add(422)
    page = watched.page
    page.keyboard.press("r")
    expect(page.locator("#when-help")).to_contain_text("in Europe/Berlin")
    page.get_by_label("New due time").fill("2035-01-31 19.00")
    page.get_by_label("New due time").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Say when: it must be an instant, such as 19:00")
    expect(page.get_by_label("New due time")).to_have_value("2035-01-31 19.00")
    expect(page.get_by_label("New due time")).to_be_focused()
    page.get_by_label("New due time").fill("2035-01-31 19:00")
    page.get_by_label("New due time").press("Enter")
    expect(page.locator(".new-time")).to_contain_text(SEVEN)
    assert due_at(jobs, "j") == before
    page.get_by_role("button", name="Reschedule").click()
    expect(page.get_by_role("status").first).to_have_text(re.compile(r"It is due 2035-01-31 19:00:00 (CET|GMT\+1)\."))
    assert due_at(jobs, "j") == "2035-01-31T18:00:00.000Z"


def test_a_due_time_that_is_changed_is_shown_again(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("a", "b", delay=600)
    page = open_page(f"{root}?state=delayed", **BERLIN).page
    page.get_by_label("Select a", exact=True).check()
    page.get_by_role("button", name="Reschedule…").click()
    page.get_by_label("New due time").fill("2035-01-31 18:00")
    page.get_by_label("New due time").press("Enter")
    expect(page.locator(".new-time")).to_contain_text("2035-01-31 17:00:00 UTC")
    page.get_by_label("New due time").fill("2035-01-31 19:00")
    page.get_by_label("New due time").press("Enter")
    expect(page.locator(".new-time")).to_contain_text(SEVEN)
    page.get_by_label("New due time").press("Enter")
    expect(page.get_by_text("1 job was rescheduled.")).to_be_visible()
    assert due_at(jobs, "a") == "2035-01-31T18:00:00.000Z"


def test_a_filter_is_typed_in_the_zone_that_its_fields_name(jobs: Producer, root: str, open_page: OpenPage) -> None:
    for job_id, run_at in (("before", "2035-01-31T17:59:59Z"), ("within", "2035-01-31T18:30:00Z")):
        jobs.put(job_id, run_at=run_at)
    page = open_page(f"{root}?state=delayed", **BERLIN).page
    page.get_by_label("Due from, Europe/Berlin").fill("2035-01-31 19:00")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page.locator("[data-row]")).to_have_count(1)
    expect(page.locator("[data-row]")).to_have_attribute("data-row", "within")
    expect(page.locator("#due-filter")).to_contain_text(SEVEN)
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator(".what")).to_contain_text(re.compile(r"due at 2035-01-31 19:00:00 (CET|GMT\+1) or later"))
    elsewhere = open_page(f"{root}?state=delayed&due_after=2035-01-31+19:00&zone=Europe/Berlin").page
    expect(elsewhere.get_by_label("Due from, Europe/Berlin")).to_have_value("2035-01-31 19:00")
    expect(elsewhere.locator("[data-row]")).to_have_count(1)
    page.goto(f"{root.partition('console/')[0]}console/due")
    page.get_by_label("Due from, Europe/Berlin").fill("2035-01-31 18:59")
    page.get_by_label("Due before, Europe/Berlin").fill("19 o'clock")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Due before must be an instant, such as 19:00")
    expect(page.get_by_label("Due from")).to_have_value("2035-01-31 18:59")
    page.get_by_label("Due before").fill("2035-01-31 19:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("row", name=jobs.topic).locator(".num")).to_have_text("1")


def visible_times(page: Page) -> list[str]:
    """The dates and times that can be read on the page, with those in the form of a length of time."""
    script = "all => all.filter(one => one.checkVisibility()).map(one => one.closest('tr, dd, p, li').innerText)"
    found: list[str] = page.locator(":is(.job-head, .job-columns, #rows, .next) time").evaluate_all(script)
    return found


def test_no_time_is_there_twice_when_times_are_absolute(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.fail("j", "boom", deadline=3600)
    page = open_page(f"{root}/j", **BERLIN).page
    expect(page.locator(".countdown")).to_contain_text(re.compile(r"due in .* 20\d\d-"))
    page.locator("#clock").click()
    page.get_by_label("absolute").check()
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".countdown")).to_have_text(
        re.compile(r"^\s*due 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\s*$"), use_inner_text=True
    )
    for path in (f"{root}/j", root, root.partition("console/")[0]):
        page.goto(path)
        texts = visible_times(page)
        assert texts, path
        for text in texts:
            shown = re.findall(r"\d\d:\d\d:\d\d", text)
            assert len(shown) == len(set(shown)), (path, text)


def test_reasons_are_in_the_zone_of_the_reader(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("j", run_at="2035-01-31T18:00:00Z")
    page = open_page(f"{root}/j", **BERLIN).page
    expect(page.locator("#why")).to_contain_text(re.compile(r"2035-01-31 19:00:00 (CET|GMT\+1)"))


def test_events_are_in_the_zone_that_was_chosen(without_keys: ServiceProcess, open_page: OpenPage, topic: str) -> None:
    call(without_keys, "PUT", f"/topics/{topic}", {"events": 20})
    call(without_keys, "POST", "/jobs", {"topic": topic, "id": "one", "delay": 60})
    page = open_page(f"{without_keys.url}/console/events?topics={topic}", timezone_id="Asia/Tokyo").page
    time = page.locator("#rows time").first
    at = time.get_attribute("datetime") or ""
    tokyo = f"{(int(at[11:13]) + 9) % 24:02}{at[13:19]}"
    expect(time).to_contain_text(tokyo)
    page.locator("#clock").click()
    page.get_by_label("UTC", exact=True).check()
    page.get_by_role("button", name="Close").click()
    expect(time).to_contain_text(at[11:19])
    expect(page.locator("#events .zone")).to_have_text("Times in UTC.")
    page.reload()
    expect(time).to_contain_text(at[11:19])
