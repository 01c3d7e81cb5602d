"""The pages of jobs in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.acceptance.console.conftest import KeyedService, OpenPage
from tests.acceptance.console.job_pages import Producer
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def root(without_keys: ServiceProcess, topic: str) -> str:
    return f"{without_keys.url}/console/topics/{topic}/jobs"


def starts_with(page: Page, job_id: str) -> None:
    """Wait until the list that is shown begins with this job."""
    expect(page.locator("[data-row]").first).to_have_attribute("data-row", job_id)


def ids_on(page: Page) -> list[str]:
    rows: list[str] = page.locator("[data-row]").evaluate_all("rows => rows.map(row => row.dataset.row)")
    return rows


def test_jobs_are_filtered_ordered_and_paged(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put(*(f"a-{number:03}" for number in range(120)), delay=600)
    jobs.put("b-1", delay=900, tags=["vip"], body={"x": "y" * 2000})
    page = open_page(f"{root}?state=delayed").page
    expect(page.get_by_role("link", name=re.compile("^delayed"))).to_have_attribute("aria-current", "page")
    assert ids_on(page) == [f"a-{number:03}" for number in range(50)]
    page.get_by_role("link", name="Next").click()
    starts_with(page, "a-050")
    page.go_back()
    starts_with(page, "a-000")
    page.get_by_label("Order").select_option("Due last")
    page.get_by_role("button", name="Filter").click()
    starts_with(page, "b-1")
    assert ids_on(page)[:2] == ["b-1", "a-119"]
    expect(page.locator("[data-row='b-1']")).to_contain_text("2.0 kB")
    page.locator("[data-row='b-1']").get_by_role("link", name="vip").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    assert ids_on(page) == ["b-1"]
    page.goto(root)
    page.keyboard.press("/")
    page.keyboard.type("a-11")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("id=a-11"))
    expect(page.locator("[data-row]")).to_have_count(10)


def test_refreshes_never_move_a_selection(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("m-1", "m-2", "m-3", delay=600)
    page = open_page(f"{root}?state=delayed").page
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_label("Select m-2")).to_be_checked()
    expect(page.locator("#selected-count")).to_have_text("1 selected")
    jobs.put("earlier-1", "earlier-2", delay=300)
    jobs.http.delete(f"/jobs/{jobs.topic}/m-1").raise_for_status()
    jobs.http.patch(f"/jobs/{jobs.topic}/m-2", json={"max_attempts": 77}).raise_for_status()
    expect(page.get_by_role("button", name="2 new")).to_be_visible()
    expect(page.locator("[data-row='m-1']")).to_have_class(re.compile("gone"))
    expect(page.locator("[data-row='m-2']")).to_contain_text("0/77")
    assert ids_on(page) == ["m-1", "m-2", "m-3"]
    expect(page.locator("[data-current]")).to_have_attribute("data-row", "m-2")
    page.keyboard.press(".")
    assert ids_on(page) == ["earlier-1", "earlier-2", "m-2", "m-3"]
    expect(page.get_by_label("Select m-2")).to_be_checked()
    expect(page.get_by_role("button", name="2 new")).to_be_hidden()


def test_only_rows_of_jobs_that_are_gone_are_struck_out(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put(*(f"m-{number:02}" for number in range(60)), delay=600)
    page = open_page(f"{root}?state=delayed").page

    def row(job_id: str) -> Locator:
        return page.locator(f"[data-row='{job_id}']")

    for number in range(3, 50):  # behind those that were on the second page
        jobs.http.patch(f"/jobs/{jobs.topic}/m-{number:02}", json={"delay": 90_000}).raise_for_status()
    jobs.http.patch(f"/jobs/{jobs.topic}/m-01", json={"delay": 0}).raise_for_status()
    jobs.http.delete(f"/jobs/{jobs.topic}/m-02").raise_for_status()
    expect(row("m-02")).to_have_class(re.compile("gone"))
    expect(row("m-02")).to_contain_text("gone")
    expect(row("m-01")).to_contain_text("ready")
    expect(row("m-01")).to_have_class("left")
    expect(row("m-03")).to_contain_text("in 1 d")
    expect(row("m-49")).to_contain_text("in 1 d")
    assert page.locator("[data-row]").count() == 50
    assert page.locator("[data-row]:is(.gone, .left)").evaluate_all("rows => rows.map(row => row.dataset.row)") == [
        "m-01",
        "m-02",
    ]
    jobs.put("m-02", delay=300)
    expect(row("m-02")).to_have_class("")


def test_rows_between_are_selected_and_acted_on(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put(*(f"r-{number}" for number in range(6)), delay=600)
    page = open_page(f"{root}?state=delayed", permissions=["clipboard-read", "clipboard-write"]).page
    page.get_by_label("Select r-1").check()
    page.get_by_label("Select r-4").click(modifiers=["Shift"])
    expect(page.locator("#selected-count")).to_have_text("4 selected")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel 4 jobs")).to_be_visible()
    page.reload()
    page.get_by_role("link", name="Copy link").click()
    expect(page.get_by_role("link", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("button", name="Cancel 4").click()
    expect(page.get_by_text("Undo puts 4 jobs back as they were.")).to_be_visible()
    assert ids_on(page) == ["r-0", "r-5"]
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status").first).to_contain_text("Put 4 jobs back.")
    assert jobs.counts()["delayed"] == 6


@pytest.mark.parametrize("chosen", ["Select m-2", "all that match"])
def test_nothing_is_selected_unseen_after_back(jobs: Producer, root: str, open_page: OpenPage, chosen: str) -> None:
    jobs.put("m-1", "m-2", delay=600)
    page = open_page(f"{root}?state=delayed").page
    page.get_by_label("Order").select_option("Due last")
    page.get_by_label(chosen).check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("button", name="Back")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cancel")
    jobs.put("earlier", delay=300)  # the browser would check the row at the place of the one that was checked
    page.go_back()
    expect(page.locator("[data-row]")).to_have_count(3)
    expect(page.locator("#selected-count")).to_have_text("0 selected")
    assert page.locator("#rows-form input:checked").count() == 0
    assert page.get_by_label("Order").input_value() == "asc"  # as the rows are


def test_all_that_match_need_the_name_when_they_are_many(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put(*(f"a{number}" for number in range(1000)), delay=600)
    jobs.put("one-more", delay=600)
    page = open_page(f"{root}?state=delayed").page
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Cancel…").click()
    button = page.get_by_role("button", name="Cancel 1,001")
    expect(button).to_be_disabled()
    page.get_by_label("type the name of the topic").fill(jobs.topic)
    button.click()
    expect(page.locator(".task-count")).to_have_text("1,001 of 1,001 cancelled")
    expect(page.locator(".task")).to_contain_text("All of them.")
    page.get_by_role("link", name="Jobs of").click()
    expect(page).to_have_url(re.compile("/jobs$"))


def test_a_cancel_is_undone(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("one", delay=600, body={"n": 12345678901234567890})
    watched = open_page(f"{root}/one")
    watched.expected_statuses.add(404)
    page = watched.page
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled. Undo puts it back as it was.")).to_be_visible()
    expect(page.locator("[data-left]")).to_contain_text(re.compile("9 min|10 min"))
    assert jobs.get("one") is None
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".job-title")).to_contain_text("delayed")
    expect(page.locator("pre.json")).to_contain_text("12345678901234567890")
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()


def test_a_job_shows_its_life_and_can_be_changed(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.fail("j", "SMTP 421: later", max_attempts=3, body={"rows": list(range(30_000))}, tags=["vip"])
    page = open_page(f"{root}/j", timezone_id="America/New_York").page
    timeline = page.get_by_role("region", name="Timeline")
    expect(timeline).to_contain_text("Attempt 1 failed")
    expect(timeline).to_contain_text("SMTP 421: later")
    expect(timeline).to_contain_text("if attempt 2 fails at once")
    expect(timeline.locator("time[data-absolute]").first).to_have_attribute("title", re.compile("E[SD]T|GMT-[45]"))
    expect(page.get_by_role("region", name="Why it has not run")).to_contain_text("Attempt 1 of 3 failed")
    expect(page.locator("pre.json")).to_contain_text("29")
    shown = page.locator("pre.json").inner_text()
    assert 60_000 < len(shown) <= 64_000
    page.get_by_role("link", name=re.compile("^All")).click()
    expect(page.locator("pre.json")).to_contain_text("29999")
    page.goto(f"{root}/j")
    page.keyboard.press("r")
    page.get_by_label("New due time").fill("+3d")
    page.wait_for_timeout(2500)  # a refresh would empty the field
    page.get_by_label("New due time").press("Enter")
    expect(page.get_by_role("button", name="Reschedule")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".countdown")).to_contain_text(re.compile("in (3 d|2 d 23 h)"))
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".job-title")).to_contain_text("ready")
    assert (jobs.get("j") or {})["state"] == "ready"


def test_a_page_follows_its_job(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("j", retain=60)
    page = open_page(f"{root}/j").page
    expect(page.locator(".job-title")).to_contain_text("ready")
    [popped] = jobs.pop()
    expect(page.locator(".job-title")).to_contain_text("held by w1")
    expect(page.locator("#timeline")).to_contain_text("Attempt 1 handed out to w1")
    expect(page.locator("#timeline").get_by_text("Attempt 1 handed out")).to_have_count(1)
    finish = {"receipt": popped["receipt"], "result": {"sent": 7}}
    jobs.http.post(f"/jobs/{jobs.topic}/j/finish", json=finish).raise_for_status()
    expect(page.locator(".job-title")).to_contain_text(re.compile(r"finished .* by w1", re.DOTALL))
    expect(page.locator("#timeline")).to_contain_text(re.compile(r"Finished in attempt 1 by w1\s+after about \d+ s"))
    expect(page.locator("#timeline")).not_to_contain_text("earlier attempt")
    expect(page.locator("#result pre")).to_contain_text('"sent": 7')


def test_a_page_keeps_what_it_knew_of_a_job_that_is_gone(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("done", "stopped", "quick", body={"n": 7}, tags=["vip"])
    pages = {}
    for job_id in ("done", "stopped", "quick"):
        page = pages[job_id] = open_page(f"{root}/{job_id}").page
        expect(page.locator("pre.json")).to_contain_text('"n": 7')
    done, stopped = jobs.pop(2)
    for job_id in ("done", "stopped"):
        expect(pages[job_id].locator("#timeline")).to_contain_text("Attempt 1 handed out to w1")
    for one in (done, *jobs.pop()):
        finish = {"receipt": one["receipt"]}
        jobs.http.post(f"/jobs/{jobs.topic}/{one['id']}/finish", json=finish).raise_for_status()
    jobs.http.delete(f"/jobs/{jobs.topic}/{stopped['id']}").raise_for_status()
    ends = {
        "done": r"handed out to w1.*Ended in attempt 1 by w1 after about \d+ s, and not kept",
        "stopped": "handed out to w1.*Cancelled while w1 held it",
        "quick": "(Due.*Gone finished or cancelled, within|(Due|handed out to w1).*Ended in attempt 1 by w1)",
    }
    for job_id, end in ends.items():
        page = pages[job_id]
        expect(page.locator("#timeline")).to_contain_text(re.compile(f"Put.*{end}", re.DOTALL))
        expect(page.locator(".job-title")).to_contain_text(re.compile("gone.*noticed", re.DOTALL))
        expect(page.locator("#why")).not_to_contain_text("never put")
        expect(page.locator("#facts")).to_contain_text("vip")
        expect(page.locator("#facts")).to_contain_text("Attempts1" if job_id == "done" else "Attempts")
        expect(page.locator("pre.json")).to_contain_text('"n": 7')
        expect(page.locator("#timeline .tl-predicted")).to_have_count(0)
        expect(page.locator("#timeline")).not_to_contain_text("is running")


def test_events_tell_the_whole_life_of_a_job_that_is_gone(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.http.put(f"/topics/{jobs.topic}", json={"events": 100}).raise_for_status()
    jobs.put("j", "other")
    [popped, _] = jobs.pop(2)
    page = open_page(f"{root}/j").page
    expect(page.locator("#timeline")).to_contain_text("Attempt 1 handed out to w1")
    jobs.http.post(f"/jobs/{jobs.topic}/j/finish", json={"receipt": popped["receipt"]}).raise_for_status()
    life = re.compile(r"Put.*Attempt 1 handed out to w1.*Finished in attempt 1 by w1 after [\d.]+ m?s", re.DOTALL)
    expect(page.locator("#timeline")).to_contain_text(life)
    expect(page.locator("#timeline")).not_to_contain_text("as this page saw")
    watched = open_page(f"{root}/other")
    watched.expected_statuses.add(404)
    watched.page.goto(f"{root}/j")  # also when it is opened only now
    expect(watched.page.locator("#timeline")).to_contain_text(life)
    expect(watched.page.locator("#why")).not_to_contain_text("never put")


@pytest.fixture
def operator(with_keys: KeyedService, topic: str) -> Iterator[Producer]:
    """Jobs of the service with keys, put with a key that may do everything."""
    with Producer(with_keys.url, topic, with_keys.keys.tokens["everything"]) as jobs:
        yield jobs


def test_pages_work_behind_a_prefix(
    behind_prefix: str, with_keys: KeyedService, operator: Producer, open_page: OpenPage
) -> None:
    operator.put("a", "b", delay=600, body={"n": 1})
    url = f"{behind_prefix}/console/topics/{operator.topic}/jobs"
    page = open_page(url, token=with_keys.keys.tokens["everything"]).page
    page.get_by_role("link", name="a", exact=True).click()
    expect(page.locator("pre.json")).to_contain_text('"n": 1')
    page.get_by_role("link", name="jobs").click()
    page.get_by_label("Select a", exact=True).check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel 1").click()
    expect(page).to_have_url(re.compile(f"^{re.escape(url)}"))
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status").first).to_contain_text("Put 1 job back.")
    expect(page).to_have_url(url)


def test_a_command_is_copied_without_the_key(with_keys: KeyedService, operator: Producer, open_page: OpenPage) -> None:
    token = with_keys.keys.tokens["everything"]
    operator.put("j", delay=600, body={"text": "it's"})
    page = open_page(f"{with_keys.url}/console/topics/{operator.topic}/jobs/j", token=token).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("link", name="Copy as curl").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "Bearer $DEFERD_KEY" in copied
    assert token not in page.content()


def test_rows_of_dead_jobs_are_low_on_a_telephone(jobs: Producer, root: str, open_page: OpenPage) -> None:
    error = "KeyError: 'tax_rate' in handler send_confirmation at line 132 of mailer.py, HTTP 502 Bad Gateway"
    jobs.fail("order-2026-11-00001", error, dead=True, tags=["customer:42", "campaign:black-friday"])
    page = open_page(f"{root}?state=dead", viewport={"width": 360, "height": 740}).page
    box = page.locator("[data-row]").bounding_box()
    assert box is not None
    assert box["height"] < 60, box
    expect(page.locator("[data-row] .error-text")).to_be_in_viewport()
    page.goto(f"{root}?state=dead&id=order")
    for name in ("Filter", "Fewer filters"):
        button = page.get_by_role("button", name=name, exact=True).bounding_box()
        assert button is not None
        assert button["height"] < 40, name


CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = {};
  for (const button of document.querySelectorAll("main button:disabled")) {
    const behind = luminance(getComputedStyle(button).backgroundColor);
    for (const element of [button, ...button.querySelectorAll("span")]) {
      const text = luminance(getComputedStyle(element).color);
      const [dark, light] = [text, behind].sort((one, other) => one - other);
      found[`${button.textContent.trim()} ${element.tagName}`] = (light + 0.05) / (dark + 0.05);
    }
  }
  return found;
}"""
"""The contrast of the text of each disabled button."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_disabled_button_can_be_read(
    with_keys: KeyedService, operator: Producer, open_page: OpenPage, theme: Literal["light", "dark"]
) -> None:
    operator.put("j", delay=600)
    path = f"{with_keys.url}/console/topics/{operator.topic}"
    page = open_page(path, token=with_keys.keys.tokens["read"], color_scheme=theme).page
    for there in (path, f"{path}/jobs/j"):
        page.goto(there)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) >= 4, contrasts
        assert {text: ratio for text, ratio in contrasts.items() if ratio < 4.5} == {}


def test_only_whole_json_can_be_copied(jobs: Producer, root: str, open_page: OpenPage) -> None:
    body = {"rows": [f"row {number:06}" for number in range(6000)]}
    jobs.put("long", delay=600, body=body)
    page = open_page(f"{root}/long", permissions=["clipboard-read", "clipboard-write"]).page
    expect(page.locator("pre.json")).to_contain_text("row 000000")
    expect(page.get_by_role("button", name="Copy", exact=True)).to_have_count(0)
    page.get_by_role("link", name=re.compile("^All")).click()
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == body


def test_without_scripts_jobs_are_found_and_cancelled(jobs: Producer, root: str, open_page: OpenPage) -> None:
    jobs.put("a-1", "a-2", "b-1", delay=600, body={"n": 1})
    page = open_page(root, java_script_enabled=False).page
    page.get_by_label("Id or its beginning").fill("a-")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody tr").count() == 2
    page.get_by_label("Select a-1").check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel 1").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="a-2").click()
    page.get_by_role("link", name="Show the body").click()
    expect(page.locator("pre")).to_contain_text('"n": 1')
    assert jobs.get("a-1") is None
