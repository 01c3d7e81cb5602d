"""The first page says that all is quiet only while that is known."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from deferd.console.rendering import Renderer
from tests.acceptance.console.conftest import OpenPage
from tests.acceptance.service_process import ServiceProcess, running_service

HEARD_OF_IN_MS = 40_000
GIVEN_UP_MS, SHORT_MS = 20_000, 2000
"""When a page ends a request that gets no response, and when it does that in a test."""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(data_dir=tmp_path_factory.mktemp("quiet")) as service:
        yield service


def pid_of_store(service: ServiceProcess) -> int:
    pid = service.store_pid()
    assert pid is not None
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [pid_of_store, lambda service: service.process.pid], ids=["store", "service"])
def test_the_headline_and_the_title_say_that_nothing_is_known_while_the_store_is_down(
    quiet: ServiceProcess, open_page: OpenPage, stopped: Callable[[ServiceProcess], int]
) -> None:
    watched = open_page(f"{quiet.url}/")
    watched.expected_statuses = {0, 500, 503}
    page = watched.page
    headline = page.locator("#sentence")
    expect(headline).to_have_text("All quiet.")
    assert page.evaluate("htmx.config.timeout") == GIVEN_UP_MS
    page.evaluate(f"htmx.config.timeout = {SHORT_MS}")
    pid = stopped(quiet)
    os.kill(pid, signal.SIGSTOP)
    try:
        expect(headline).to_have_text("It is not known what needs you", timeout=HEARD_OF_IN_MS)
        expect(page).to_have_title("(?) Now · deferd")
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(headline).to_have_text("All quiet.", timeout=HEARD_OF_IN_MS)
    expect(page).to_have_title("Now · deferd")
    timed_out = ("console: htmx:timeout", "console: htmx:afterRequest")
    watched.problems[:] = [one for one in watched.problems if not one.startswith(timed_out)]


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_headline_is_quiet_only_if_all_topics_were_read(*, is_complete: bool) -> None:
    attention = {
        "left_out": 0, "next_due_at": None, "next_due_jobs": 0, "complete": is_complete
    }  # fmt: skip
    shown = Renderer().render_regions(
        "now.html", ["attention"], {"attention": attention, "lines": [], "acknowledged": []}
    )
    assert ("All quiet." in shown) is is_complete
    assert ("as far as topics could be read" in shown) is not is_complete
