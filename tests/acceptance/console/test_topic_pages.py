"""Now, a topic and System in a real Chromium, and what the keyboard and the choice of times do on every page."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.console.conftest import KeyedService, OpenPage
from tests.acceptance.console.job_pages import call
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with a topic whose jobs come due within the hour, and one whose jobs were handed out."""
    with running_service(data_dir=tmp_path_factory.mktemp("topics")) as service:
        jobs = [{"topic": "orders.close", "id": f"o-{at}", "delay": 60 + 30 * at, "body": at} for at in range(100)]
        call(service, "POST", "/jobs/batch", {"jobs": jobs})
        for at in range(3):
            call(service, "POST", "/jobs", {"topic": "mail.remind", "id": f"m-{at}", "ttr": 3600})
            call(service, "POST", "/topics/mail.remind/pop")
        yield service


NOTE_LABELS = r"""
window.labels = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const chart = this.canvas.closest("[data-chart]")?.dataset.chart;
  const half = this.measureText(text).width / 2;
  if (/^\d\d-\d\d \d\d:\d\d$/.test(text) && !labels.some((one) => one.chart === chart && one.text === text)) {
    labels.push({ chart, text, left: x - half, right: x + half });
  }
  return fillText.call(this, text, x, y);
};
"""
"""Note the dates that are written below charts."""


def drawn(page: Page, kind: str) -> None:
    expect(page.locator(f"[data-chart={kind}] canvas")).to_be_visible()


def test_now_says_that_all_is_quiet_and_what_is_next(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/").page
    expect(page.get_by_role("heading", level=1)).to_have_text("All quiet.")
    expect(page.locator(".next")).to_contain_text(re.compile(r"Next: \d\d:\d\d:\d\d, 1 job"))
    drawn(page, "now")
    page.get_by_text("As a table").click()
    expect(page.get_by_role("region", name="Jobs due by the hour")).to_contain_text("Due")
    assert (
        page.locator("#series-due").evaluate("data => JSON.parse(data.dataset.series).due.reduce((a, b) => a + b)")
        == 100
    )


def test_now_names_what_needs_somebody_and_counts_it_in_the_title(service: ServiceProcess, open_page: OpenPage) -> None:
    topic = f"paused-{uuid.uuid4().hex[:8]}"
    page = open_page(f"{service.url}/").page
    call(service, "POST", "/jobs", {"topic": topic})
    call(service, "POST", f"/topics/{topic}/pause", {"reason": "<b>the bank</b> is closed"})
    try:
        expect(page).to_have_title("(1) Now · deferd")
        expect(page.get_by_role("heading", level=1)).to_have_text("1 thing needs you")
        expect(page.locator(".alert")).to_contain_text("(<b>the bank</b> is closed); 1 job is ready")
        page.locator(".alert a").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(topic)
    finally:
        call(service, "DELETE", f"/topics/{topic}")


def test_equal_alerts_are_one_line_that_is_acknowledged(service: ServiceProcess, open_page: OpenPage) -> None:
    topics = [f"held-{number}-{uuid.uuid4().hex[:8]}" for number in range(25)]
    for topic in topics:
        call(service, "POST", "/jobs", {"topic": topic})
        call(service, "POST", f"/topics/{topic}/pause", {"reason": "the bank is closed"})
    watched = open_page(f"{service.url}/")
    watched.expected_statuses.add(422)
    page = watched.page
    try:
        expect(page).to_have_title("(1) Now · deferd")
        line = page.locator(".alert")
        expect(line).to_have_count(1)
        expect(line).to_contain_text("25 topics are paused (the bank is closed) and hold back 25 jobs")
        line.locator("summary").click()
        expect(line.get_by_role("listitem")).to_have_count(20)
        page.get_by_role("link", name="All 25").click()
        expect(line.get_by_role("listitem")).to_have_count(25)
        page.get_by_role("link", name="Acknowledge…").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Acknowledge 25 alerts")
        page.get_by_label("Reason").fill("until the bank opens")
        page.get_by_label("Until").fill("-1h")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_role("alert")).to_have_text("The end must be in the future.")
        page.get_by_label("Until").fill("+2h")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.locator(".new-time")).to_contain_text("They are acknowledged until")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.locator("main")).to_contain_text("Acknowledged 25 alerts until")
        expect(page.get_by_role("heading", level=1)).to_have_text("All quiet.")
        page.locator("#acknowledged summary").click()
        expect(page.locator("#acknowledged")).to_contain_text(re.compile("25 topics.*“until the bank opens”, until 20"))
        page.get_by_role("button", name="End").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("1 thing needs you")
    finally:
        for topic in topics:
            call(service, "DELETE", f"/topics/{topic}")


def test_topics_are_sorted_and_found(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/topics").page
    page.get_by_role("link", name="Delayed").click()
    expect(page).to_have_url(re.compile(r"sort=delayed"))
    expect(page.locator("tbody tr").first).to_have_attribute("data-row", "orders.close")
    page.keyboard.press("/")
    page.keyboard.type("REMIND")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_have_attribute("data-row", "mail.remind")


def test_selected_topics_are_paused_together(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/topics").page
    for topic in ("mail.remind", "orders.close"):
        page.get_by_label(f"Select {topic}").check()
    page.get_by_role("button", name="Pause or resume …").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("2 topics: 2 hand out jobs, 0 are paused")
    page.get_by_label("Reason").fill("the bank is closed")
    page.get_by_role("button", name="Pause 2 topics").click()
    expect(page.get_by_role("status")).to_have_text("Paused 2 topics.")
    expect(page.get_by_text("“the bank is closed”")).to_have_count(2)
    page.get_by_role("button", name="Resume 2 topics").click()
    expect(page.get_by_role("status")).to_have_text("Resumed 2 topics.")


def test_a_topic_shows_its_jobs_its_charts_and_its_consumers(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/topics/orders.close").page
    tabs = page.get_by_role("navigation", name="Jobs by state")
    expect(tabs.get_by_role("link", name="100 delayed")).to_have_attribute(
        "href", "console/topics/orders.close/jobs?state=delayed"
    )
    for kind in ("flow", "due", "lateness", "run-time", "waiting"):
        drawn(page, kind)
    page.get_by_role("link", name="2 days").click()
    expect(page).to_have_url(re.compile("span=2d"))
    drawn(page, "flow")


def test_a_drag_over_the_bars_lists_their_jobs(service: ServiceProcess, open_page: OpenPage) -> None:
    watched = open_page(f"{service.url}/console/topics/orders.close")
    watched.expected_statuses.add(404)  # until there is the page of jobs
    page = watched.page
    over = page.locator("[data-chart=due] .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, y)
    page.mouse.down()
    expect(page.locator("#series")).to_have_attribute("data-hold", "")
    page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"/console/topics/orders\.close/jobs\?"))
    query = httpx.URL(page.url).params
    assert query["state"] == "delayed"
    assert query["due_after"] < query["due_before"]
    found = call(service, "GET", f"/topics/orders.close/jobs?{httpx.QueryParams(query)}")["jobs"]
    assert 30 <= len(found) <= 80


def at_bar(page: Page, kind: str, place: int, share: float) -> tuple[float, float, list[int]]:
    """Where a bar is on the screen, `share` of its interval from its left; and its begin, length and number of jobs."""
    series = page.locator("#series-due").evaluate("data => JSON.parse(data.dataset.series)")
    begin, bucket = series["at"][place], series["bucket"]
    first, last = series["at"][0], series["at"][-1] + bucket
    if kind == "now":
        first = time.time() - 6 * 3600
        last = first + 12 * 3600
    over = page.locator(f"[data-chart={kind}] .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] * (begin + share * bucket - first) / (last - first)
    return x, box["y"] + box["height"] / 2, [begin, bucket, series["due"][place]]


def clock(at_s: int) -> str:
    return time.strftime("%H:%M", time.gmtime(at_s))


@pytest.mark.parametrize(("path", "kind"), [("console/topics/orders.close", "due"), ("", "now")])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_bar_reads_its_own_interval_and_a_click_lists_what_it_counts(
    service: ServiceProcess, open_page: OpenPage, path: str, kind: str, share: float
) -> None:
    page = open_page(f"{service.url}/{path}", timezone_id="UTC").page
    drawn(page, kind)
    place = next(at for at in range(2, 10) if at_bar(page, kind, at, share)[2][2])
    x, y, (begin, bucket, count) = at_bar(page, kind, place, share)
    page.mouse.move(x - 1, y)
    page.mouse.move(x, y)
    tip = page.locator(f"[data-chart={kind}] .chart-tip")
    expect(tip).to_contain_text(f"{clock(begin)} – {clock(begin + bucket)}")  # noqa: RUF001 (a range)
    expect(tip).to_contain_text(f"due {count}")
    page.mouse.click(x, y)
    if kind == "now":
        page.wait_for_url(re.compile("/console/due"))
        row = page.locator("tr[data-row='orders.close']")
        expect(row.locator(".num")).to_have_text(str(count))
        row.get_by_role("link").click()
    page.wait_for_url(re.compile(r"/orders\.close/jobs"))
    query = httpx.URL(page.url).params
    expect(page.locator("[data-row]")).to_have_count(count)
    assert clock(begin) in query["due_after"]
    assert clock(begin + bucket) in query["due_before"]


def test_a_click_on_the_past_does_nothing(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/").page
    drawn(page, "now")
    x, y, _ = at_bar(page, "now", 0, -6)
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    page.wait_for_timeout(300)
    expect(page).to_have_url(f"{service.url}/")


def test_the_days_below_a_chart_do_not_touch(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/topics/orders.close?span=2d", viewport={"width": 1400, "height": 900}).page
    page.add_init_script(NOTE_LABELS)
    page.reload()
    drawn(page, "due")
    labels = page.evaluate("labels.filter(one => one.chart === 'due').sort((one, other) => one.left - other.left)")
    assert len(labels) > 2, labels
    gaps = [other["left"] - one["right"] for one, other in itertools.pairwise(labels)]
    assert min(gaps) >= 8, labels


def test_a_pause_with_a_reason_and_a_resume(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/topics/mail.remind").page
    page.get_by_text("Pause …").click()
    page.get_by_label("Reason, for people").fill("the <script>mail</script> server is down")
    page.get_by_role("button", name="Pause mail.remind").click()
    expect(page.locator("#counts").get_by_role("status")).to_contain_text("“the <script>mail</script> server is down”")
    assert call(service, "GET", "/topics/mail.remind")["paused"] is True
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("mail.remind hands out jobs again.")).to_be_visible()
    assert call(service, "GET", "/topics/mail.remind")["paused"] is False


def test_settings_show_each_error_at_its_field_and_keep_what_was_typed(
    service: ServiceProcess, open_page: OpenPage
) -> None:
    watched = open_page(f"{service.url}/console/topics/mail.remind")
    watched.expected_statuses.add(422)
    page = watched.page
    page.get_by_label("Time to run, seconds").fill("soon")
    page.get_by_label("Attempts at most").fill("0")
    page.get_by_label("Backoff").fill('{"kind": "fixed", "seconds": -1}')
    page.get_by_role("button", name="Store settings").click()
    alert = page.get_by_role("alert")
    expect(alert.get_by_role("listitem")).to_have_count(3)
    expect(page.locator("main > :first-child")).to_have_attribute("role", "alert")
    expect(page.get_by_label("Time to run, seconds")).to_be_focused()
    expect(page.get_by_label("Time to run, seconds")).to_be_in_viewport()
    expect(page.get_by_label("Time to run, seconds")).to_have_attribute("aria-invalid", "true")
    alert.get_by_role("link", name="Attempts at most").click()
    expect(page.get_by_label("Attempts at most")).to_be_in_viewport()
    expect(page.get_by_label("Attempts at most")).to_have_value("0")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Attempts at most")).to_have_value("0")
    page.get_by_label("Attempts at most").fill("5")
    page.get_by_label("Backoff").fill("")
    page.get_by_role("button", name="Store settings").click()
    expect(page.get_by_label("Attempts at most")).to_have_value("5")
    page.get_by_label("Time to run, seconds").fill("0.001")  # a number, which the API refuses
    page.get_by_role("button", name="Store settings").click()
    expect(page.locator("#hint-ttr .field-error")).to_contain_text("0.1")
    page.get_by_label("Time to run, seconds").fill("30")
    page.get_by_label("Backoff").fill('{"kind": "fixed", "seconds": 10}')
    page.get_by_role("button", name="Store settings").click()
    expect(page.get_by_text("apply to jobs put from now on.", exact=False).first).to_be_visible()
    settings = call(service, "GET", "/topics/mail.remind")["settings"]
    assert (settings["ttr"], settings["max_attempts"], settings["backoff"]["kind"]) == (30, 5, "fixed")


def test_a_key_without_admin_sees_what_it_lacks(with_keys: KeyedService, open_page: OpenPage) -> None:
    tokens = with_keys.keys.tokens
    headers = {"Authorization": f"Bearer {tokens['put']}"}
    httpx.post(f"{with_keys.url}/jobs", json={"topic": "lacks"}, headers=headers, verify=NO_TLS).raise_for_status()
    page = open_page(f"{with_keys.url}/console/topics/lacks", token=tokens["read"]).page
    expect(page.get_by_role("button", name="Pause … needs scope admin")).to_be_disabled()
    expect(page.get_by_role("button", name="Store settings needs scope admin")).to_be_disabled()


def test_system_shows_the_store_and_runs_the_check(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/system").page
    expect(page.get_by_text("on disk before the response")).to_be_visible()
    expect(page.get_by_role("region", name="Shards", exact=True)).to_contain_text("works")
    page.get_by_role("link", name="Run the consistency check").click()
    expect(page.get_by_role("status")).to_contain_text("Clean.")


def test_ctrl_k_goes_to_pages_topics_and_jobs(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/system").page
    page.keyboard.press("Control+k")
    page.keyboard.type("mail")
    expect(page.get_by_role("option", name="topic mail.remind")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("mail.remind")
    page.wait_for_load_state("load")  # the scripts of the new page listen
    page.keyboard.press("Control+k")
    page.keyboard.type("orders.close/o-7")
    expect(page.get_by_role("option", name="job orders.close/o-7")).to_have_attribute(
        "href", "console/topics/orders.close/jobs/o-7"
    )
    page.get_by_role("combobox").fill("<img src=x>")
    expect(page.get_by_text("Nothing has “<img src=x>” in its name.", exact=False)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_times_are_shown_as_chosen_in_the_named_zone(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/topics", timezone_id="America/New_York").page
    due = page.locator("tr[data-row='orders.close'] td:last-child time")
    expect(due).to_contain_text("in ")
    expect(page.locator("#clock")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d (EDT|EST|GMT-[45])"))
    page.locator("#clock").click()
    expect(page.get_by_label("this browser's: America/New_York")).to_be_checked()
    page.get_by_label("absolute").check()
    page.get_by_label("another:").check()
    page.get_by_label("Another zone").fill("Asia/Tokyo")
    page.get_by_label("Another zone").press("Tab")
    page.get_by_role("button", name="Close").click()
    instant = due.get_attribute("datetime")
    assert instant is not None
    tokyo = page.evaluate(
        "at => new Intl.DateTimeFormat('sv-SE', {timeZone: 'Asia/Tokyo', dateStyle: 'short', timeStyle: 'medium'})"
        ".format(Date.parse(at))",
        instant,
    )
    expect(due).to_have_text(tokyo)
    page.reload()
    expect(page.locator("#clock")).to_have_attribute("title", re.compile("Asia/Tokyo"))
    expect(page.locator("tr[data-row='orders.close'] td:last-child time")).to_have_text(
        re.compile(r"^\d{4}-\d\d-\d\d ")
    )


def test_an_unchanged_topic_gets_304_although_a_job_waits(service: ServiceProcess) -> None:
    call(service, "POST", "/jobs", {"topic": "waits"})
    url = f"{service.url}/console/topics/waits?fragment=counts"

    def is_unchanged() -> bool:
        etag = httpx.get(url, verify=NO_TLS).headers["etag"]
        time.sleep(1.1)  # what was read is kept for a second
        return httpx.get(url, headers={"if-none-match": etag}, verify=NO_TLS).status_code == 304

    wait_until(is_unchanged, 15, "the region is the same after a second")
    call(service, "DELETE", "/topics/waits")


def test_the_command_of_an_empty_list_can_be_copied_and_works(service: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{service.url}/console/schedules", permissions=["clipboard-read", "clipboard-write"]).page
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=True)
    assert '"name":"every-five-minutes"' in done.stdout

    expect(page.get_by_role("link", name="every-five-minutes")).to_be_visible()
    call(service, "DELETE", "/schedules/every-five-minutes")
