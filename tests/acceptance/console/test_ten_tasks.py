"""What people do with the console at night: ten tasks in a real Chromium, with a bound on the clicks of each.

Each begins on the first page with a session, and follows only what is to be seen: no URL is typed. A click is a press
of the mouse's button or of Enter; typing and looking cost nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.console.conftest import EVERYTHING, KeyedService, opened_pages
from tests.acceptance.console.job_pages import Producer, call
from tests.acceptance.resp_calls import redis_client
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import wait_until

pytestmark = pytest.mark.slow(seconds=40)
COUNT_CLICKS = """
for (const kind of ["pointerdown", "keydown"]) {
  addEventListener(kind, (event) => {
    if (!event.isTrusted || (kind === "keydown" && event.key !== "Enter")) return;
    sessionStorage.setItem("clicks", Number(sessionStorage.getItem("clicks")) + 1);
  }, true);
}
"""
BATCH = 1000
CAMPAIGN, TAG, IN_CAMPAIGN = "mail.campaign", "campaign:black-friday", 50_000
INVOICES, WRONG, GATEWAY = "shop.invoice", "KeyError: 'tax_rate'", "HTTP 502 Bad Gateway"
ERRORS = {WRONG: 1200, GATEWAY: 1900, "KeyError: 'email'": 600, "SMTP 421: try again later": 300}
DUE_AT_MIDNIGHT = {"reports.nightly": 300, "mail.digest": 120}
TENANT, OTHERS = ("tenant-7.mail", "tenant-7.orders", "tenant-7.reports"), ("tenant-70.orders", "tenant-8.orders")
HOOKS, OLD_SECRET = "hooks.orders", "whsec_" + "b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xk"
LONG_S = 200_000
"""So many seconds are more than two days: no forecast of these tasks has such jobs."""
WORKS_WITHIN_MS = 30_000
"""A task about tens of thousands of jobs."""

Within = Callable[[int], AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def midnight() -> datetime:
    """The next one, in UTC, which is the zone of the browser."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, midnight: datetime) -> Iterator[KeyedService]:
    """A service at night, with all that the tasks are about."""
    folder = tmp_path_factory.mktemp("night")
    keys = KeysFile(folder / "keys.toml")
    keys.add("operator", *EVERYTHING)
    flags = ("--keys-file", str(keys.path), "--push-allow", "127.0.0.1:*", "--resp-port", "0")
    with running_service(*flags, data_dir=folder / "service") as running:
        token = keys.tokens["operator"]
        put(running, token, CAMPAIGN, IN_CAMPAIGN, delay=LONG_S, tags=[TAG], body={"to": "ada@example.com"})
        put(running, token, CAMPAIGN, 500, "weekly", delay=LONG_S, tags=["campaign:weekly"])
        put_dead_invoices(running, token)
        for topic, count in DUE_AT_MIDNIGHT.items():
            put(running, token, topic, count, run_at=(midnight + timedelta(minutes=20)).isoformat())
            put(running, token, topic, 50, "later", run_at=(midnight + timedelta(minutes=60)).isoformat())
        for topic in (*TENANT, *OTHERS):
            put(running, token, topic, 5)
        put(running, token, "shop.orders", 20, "order-1", delay=LONG_S)
        put(running, token, "shop.confirm", 1, "order-48213")
        call(running, "POST", "/topics/shop.confirm/pause", {"reason": "the mail host is moved"}, token)
        call(running, "PUT", f"/topics/{HOOKS}/push", {"url": "http://127.0.0.1:9/", "secrets": [OLD_SECRET]}, token)
        topics = {CAMPAIGN, INVOICES, *DUE_AT_MIDNIGHT, *TENANT, *OTHERS, "shop.orders", "shop.confirm"}
        wait_until(lambda: topics <= shown_topics(running, token), 20, "the list of all topics has them")
        yield KeyedService(running, keys)


def put(service: ServiceProcess, token: str, topic: str, count: int, name: str = "job", **fields: Any) -> None:
    """Put `count` jobs, or one with just this name; the disk, which other tests use, is not waited for."""
    ids = [name] if count == 1 else [f"{name}-{number:05}" for number in range(count)]
    with Producer(service.url, topic, token) as jobs:
        for begin in range(0, count, BATCH):
            jobs.put(*ids[begin : begin + BATCH], durability="memory", **fields)


def put_dead_invoices(service: ServiceProcess, token: str) -> None:
    """Jobs that are dead for several errors."""
    with redis_client(service, password=token) as consumer:
        for kind, (error, count) in enumerate(ERRORS.items()):
            put(service, token, INVOICES, count, f"invoice-{kind}")
            popped = 0
            while popped < count:
                held = consumer.execute_command("DEFERD.POP", INVOICES, "COUNT", BATCH)
                with consumer.pipeline(transaction=False) as calls:
                    for job in held:
                        calls.execute_command("DEFERD.BURY", INVOICES, job[b"id"], job[b"receipt"], "ERROR", error)
                    calls.execute()
                popped += len(held)


def shown_topics(service: ServiceProcess, token: str) -> set[str]:
    return {one["topic"] for one in call(service, "GET", "/overview", None, token)["topics"]}


@pytest.fixture(scope="module")
def tab(service: KeyedService, browser: Browser) -> Iterator[Page]:
    """A tab with a session, in which all tasks are done."""
    with opened_pages(browser) as open_url:
        watched = open_url(f"{service.url}/", token=service.keys.tokens["operator"], timezone_id="UTC")
        watched.page.add_init_script(COUNT_CLICKS)
        yield watched.page


@pytest.fixture
def within(service: KeyedService, tab: Page) -> Within:
    """Gives a task the first page, and then checks that it took at most so many clicks."""

    @contextlib.contextmanager
    def at_first_page(clicks: int) -> Iterator[Page]:
        tab.goto(f"{service.url}/")
        tab.evaluate("sessionStorage.setItem('clicks', 0)")
        yield tab
        assert 0 < tab.evaluate("Number(sessionStorage.getItem('clicks'))") <= clicks

    return at_first_page


def go_to(page: Page, text: str) -> None:
    """Open the palette, and what it has first for this text, as fast as it can be typed: two clicks."""
    page.get_by_role("button", name="Go to a page, topic or job").click()
    page.get_by_role("combobox").fill(text)
    page.keyboard.press("Enter")


def open_page_of(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()


def ask(service: KeyedService, path: str) -> Any:
    return call(service.service, "GET", path, None, service.keys.tokens["operator"])


def test_1_find_an_order_by_its_id_alone_and_why_it_does_not_run(within: Within) -> None:
    with within(3) as page:
        go_to(page, "order-48213")
        page.get_by_role("link", name="order-48213").click()
        why = page.get_by_role("region", name="Why it has not run")
        expect(why).to_contain_text("paused")
        expect(why).to_contain_text("the mail host is moved")


def test_2_redrive_just_one_error_of_4000_dead_jobs(within: Within, service: KeyedService) -> None:
    dead = sum(ERRORS.values())
    with within(3) as page:
        open_page_of(page, "Dead")
        expect(page.locator(".summary")).to_contain_text(f"{dead:,} dead jobs in {len(ERRORS)} groups")
        group = page.get_by_role("listitem").filter(has=page.locator(".group-error", has_text=WRONG))
        group.get_by_role("button", name="Redrive …").click()
        page.get_by_label("These are many").fill(INVOICES)
        page.get_by_role("button", name=f"Redrive {ERRORS[WRONG]:,} jobs").click()
        task = page.get_by_role("region", name="Task")
        expect(task).to_contain_text(f"{ERRORS[WRONG]:,} of {ERRORS[WRONG]:,}", timeout=WORKS_WITHIN_MS)
    counts = ask(service, f"/topics/{INVOICES}")["counts"]
    assert (counts["ready"], counts["dead"]) == (ERRORS[WRONG], dead - ERRORS[WRONG])
    left = {one["originals"][0]["error"] for one in ask(service, f"/dead?topics={INVOICES}")["groups"]}
    assert left == ERRORS.keys() - {WRONG}


def test_3_cancel_a_campaign_of_50000_and_undo_it(within: Within, service: KeyedService) -> None:
    before = ask(service, f"/topics/{CAMPAIGN}")["counts"]
    with within(7) as page:
        go_to(page, TAG)
        page.get_by_role("row", name=CAMPAIGN).get_by_role("link", name="all with this tag").click()
        page.get_by_label("all that match").check()
        page.get_by_role("button", name="Cancel…").click()
        page.get_by_label("type the name of the topic").fill(CAMPAIGN)
        page.get_by_role("button", name=f"Cancel {IN_CAMPAIGN:,}").click()
        page.get_by_role("button", name="Undo").wait_for(timeout=WORKS_WITHIN_MS)
        expect(page.get_by_role("region", name="Task")).to_contain_text(f"{IN_CAMPAIGN:,} of {IN_CAMPAIGN:,}")
        assert ask(service, f"/topics/{CAMPAIGN}")["counts"]["delayed"] == before["delayed"] - IN_CAMPAIGN
        page.get_by_role("button", name="Undo").click(timeout=WORKS_WITHIN_MS)
        expect(page.get_by_role("status").first).to_have_text(
            f"Put {IN_CAMPAIGN:,} jobs back.", timeout=WORKS_WITHIN_MS
        )
    assert ask(service, f"/topics/{CAMPAIGN}")["counts"] == before


def test_4_who_holds_a_job_and_since_when(within: Within, service: KeyedService) -> None:
    token = service.keys.tokens["operator"]
    put(service.service, token, "shop.ship", 1, "parcel-1", ttr=3600)
    call(service.service, "POST", "/topics/shop.ship/pop?consumer=worker-7", None, token)
    with within(2) as page:
        go_to(page, "shop.ship/parcel-1")
        state = page.get_by_role("region", name="State")
        expect(state).to_contain_text(re.compile("held by worker-7, handed out .* ago", re.DOTALL))
        since = ask(service, "/jobs/shop.ship/parcel-1")["reserved_since"]
        expect(state.locator(f"time[datetime='{since}']").first).to_be_visible()


def test_5_how_many_jobs_are_due_in_the_hour_after_midnight_and_of_which_topics(
    within: Within, midnight: datetime
) -> None:
    with within(2) as page:
        page.get_by_role("link", name="Another time…").click()
        page.get_by_label("Due from").fill(f"{midnight:%Y-%m-%d %H:%M}")
        page.get_by_label("Due before").fill(f"{midnight + timedelta(hours=1):%Y-%m-%d %H:%M}")
        page.keyboard.press("Enter")
        expect(page.get_by_role("row", name="All topics")).to_contain_text(str(sum(DUE_AT_MIDNIGHT.values())))
        rows = page.get_by_role("region", name="Topics", exact=True).locator("tbody tr")
        assert rows.all_inner_texts() == [f"{topic}\t{count}" for topic, count in DUE_AT_MIDNIGHT.items()]


def test_6_pause_all_topics_of_a_tenant(within: Within, service: KeyedService) -> None:
    with within(4) as page:
        open_page_of(page, "Topics")
        page.get_by_role("button", name="Pause or resume …").click()
        page.get_by_role("textbox", name="Topics").fill("tenant-7.*")
        page.get_by_role("button", name="Show the topics").click()
        expect(page.get_by_role("row", name="tenant-")).to_have_count(len(TENANT))
        page.get_by_label("Reason").fill("tenant-7 moves to another region")
        page.get_by_role("button", name=f"Pause {len(TENANT)} topics").click()
        expect(page.get_by_role("status")).to_have_text(f"Paused {len(TENANT)} topics.")
    assert {topic for topic in (*TENANT, *OTHERS) if ask(service, f"/topics/{topic}")["paused"]} == set(TENANT)


def test_7_change_a_job_and_run_it_now(within: Within, service: KeyedService) -> None:
    with within(5) as page:
        go_to(page, "shop.orders/order-1-00007")
        page.get_by_role("link", name="Change …").click()
        page.get_by_label("Body").fill('{"to": "ada@example.org"}')
        page.get_by_role("button", name="Store").click()
        expect(page.get_by_role("status")).to_have_text("Changed: body.")
        page.get_by_role("button", name="Run now").click()
        expect(page.get_by_role("region", name="State")).to_contain_text("ready")
    job = ask(service, "/jobs/shop.orders/order-1-00007")
    assert (job["state"], job["body"]) == ("ready", {"to": "ada@example.org"})


def test_8_follow_a_job_to_its_end(within: Within, service: KeyedService) -> None:
    token = service.keys.tokens["operator"]
    put(service.service, token, "shop.refund", 1, "refund-1", retain=3600)
    with within(2) as page, Producer(service.url, "shop.refund", token) as consumer:
        go_to(page, "shop.refund/refund-1")
        state, timeline = (page.get_by_role("region", name=name) for name in ("State", "Timeline"))
        expect(state).to_contain_text("ready")
        [popped] = consumer.pop()
        expect(state).to_contain_text("held by w1")
        finish = {"receipt": popped["receipt"], "result": {"refunded": 7}}
        consumer.http.post("/jobs/shop.refund/refund-1/finish", json=finish).raise_for_status()
        expect(state).to_contain_text(re.compile(r"finished.*by w1", re.DOTALL))
        expect(timeline).to_contain_text(re.compile(r"handed out to w1.*Finished in attempt 1 by w1", re.DOTALL))
        expect(page.get_by_role("region", name="Result")).to_contain_text('"refunded": 7')


def test_9_make_a_schedule_and_change_it(within: Within, service: KeyedService) -> None:
    with within(5) as page:
        open_page_of(page, "Schedules")
        page.get_by_role("link", name="New schedule").click()
        page.get_by_label("Name", exact=True).fill("nightly-report")
        page.get_by_role("textbox", name="Topic").fill("reports.nightly")
        page.get_by_label("Cron expression").fill("30 2 * * *")
        page.get_by_label("Time zone").fill("Europe/Berlin")
        expect(page.locator("#runs")).to_contain_text("02:30:00")  # seen before anything is stored
        page.get_by_role("button", name="Create").click()
        page.get_by_role("link", name="Change").click()
        page.get_by_label("Cron expression").fill("15 4 * * mon-fri")
        expect(page.locator("#runs")).to_contain_text("04:15:00")
        page.get_by_role("button", name="Store").click()
        expect(page.get_by_role("status")).to_have_text("Changed nightly-report.")
    stored = ask(service, "/schedules/nightly-report")
    assert (stored["cron"], stored["zone"], stored["topic"]) == ("15 4 * * mon-fri", "Europe/Berlin", "reports.nightly")


def test_10_rotate_the_secret_of_a_push(within: Within, service: KeyedService) -> None:
    def secrets() -> int:
        count: int = ask(service, f"/topics/{HOOKS}/push")["secret_count"]
        return count

    with within(6) as page:
        go_to(page, HOOKS)
        page.get_by_role("link", name="Change push …").click()
        page.get_by_role("button", name="Make a new secret").click()
        new = page.get_by_label("Secret", exact=True).input_value()
        assert new.startswith("whsec_")
        assert new != OLD_SECRET
        page.get_by_label("Second secret").fill(OLD_SECRET)
        page.get_by_role("button", name="Store push").click()
        expect(page.get_by_text("Two secrets sign each request")).to_be_visible()
        assert secrets() == 2
        page.get_by_label("Secret", exact=True).fill(new)  # now the receiver knows it
        page.get_by_role("button", name="Store push").click()
        expect(page.get_by_text("One secret signs each request")).to_be_visible()
    assert secrets() == 1
