"""Forms of the console in a real Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.acceptance.console.conftest import OpenPage
from tests.acceptance.console.job_pages import call
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow


def test_the_next_runs_follow_what_is_typed(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    watched = open_page(f"{without_keys.url}/console/schedules")
    watched.expected_statuses.add(422)
    page = watched.page
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Cron expression").fill("30 2 * *")
    runs = page.locator("#runs")
    expect(runs.get_by_text("Cron expression")).to_be_visible()
    page.get_by_label("Cron expression").fill("30 2 * * *")
    expect(runs.locator("tbody").first.locator("tr")).to_have_count(12)
    expect(runs).not_to_contain_text("clocks change")
    zone = page.get_by_label("Time zone")
    zone.focus()
    expect(page.locator("#zones option", has_text="Europe/Berlin")).to_have_count(1)
    zone.fill("Europe/Berlin")
    expect(runs.get_by_role("region", name="When clocks change")).to_contain_text("03:00:00 +02:00")
    page.get_by_label("Name", exact=True).fill("typed.nightly")
    page.get_by_label("Runs at most").fill("0")
    page.get_by_role("textbox", name="Topic").fill("typed")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("Runs at most: must be at least 1")
    expect(page.get_by_label("Runs at most")).to_be_focused()
    page.get_by_label("Runs at most").fill("3")
    expect(runs.locator("tbody").first.locator("tr")).to_have_count(3)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("typed.nightly")
    page.get_by_role("link", name="Change").click()
    expect(page.get_by_label("Runs at most")).to_have_value("3")
    page.get_by_label("Cron expression").fill("30 4 * * *")
    page.get_by_role("button", name="Store").click()
    expect(page.get_by_role("status")).to_have_text("Changed typed.nightly.")
    assert call(without_keys, "GET", "/schedules/typed.nightly")["cron"] == "30 4 * * *"
