"""The console in a real Chromium: the skeleton that all pages share."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.console.conftest import KeyedService, OpenPage
from tests.acceptance.console.job_pages import call
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
TITLE_OF_NOW = re.compile(r"^(\(\d+\) )?Now · deferd$")  # with the number of alerts, which other tests may have left


def put(service: ServiceProcess, topic: str, token: str | None = None) -> None:
    call(service, "POST", "/jobs", {"topic": topic, "id": "a", "body": 1, "delay": 3600}, token)


def new_topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def test_now_lists_the_topics_and_shows_a_new_one_by_itself(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    first, second = new_topic(), new_topic()
    put(without_keys, first)
    page = open_page(f"{without_keys.url}/").page

    expect(page).to_have_title(TITLE_OF_NOW)
    expect(page.get_by_role("link", name=first)).to_be_visible()
    expect(page.locator(f"[data-row='{first}'] time")).to_contain_text("in ")
    put(without_keys, second)

    expect(page.get_by_role("link", name=second)).to_be_visible()


@pytest.mark.parametrize("path", ["console/topics", ""])  # Now brings its topics with another region
def test_a_refresh_keeps_the_current_row_and_the_focus(
    without_keys: ServiceProcess, open_page: OpenPage, path: str
) -> None:
    first, later = f"b-{new_topic()}", f"a-{new_topic()}"
    put(without_keys, first)
    page = open_page(f"{without_keys.url}/{path}").page
    link = page.locator("#topics").get_by_role("link", name=first)
    expect(link).to_be_visible()
    for _ in range(page.locator("[data-row]").count()):
        page.keyboard.press("j")
        if page.locator("[data-row][data-current]").get_attribute("data-row") == first:
            break
    put(without_keys, later)  # a row above it

    expect(page.locator("#topics").get_by_role("link", name=later)).to_be_visible()
    expect(page.locator("[data-row][data-current]")).to_have_attribute("data-row", first)
    expect(link).to_be_focused()


def test_an_unchanged_region_gets_304(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    put(without_keys, new_topic())
    page = open_page(f"{without_keys.url}/").page
    with page.expect_response(lambda response: "fragment=" in response.url and response.status == 304) as unchanged:
        pass

    assert unchanged.value.headers["etag"].startswith('"')


def test_the_theme_is_kept(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{without_keys.url}/", color_scheme="light").page
    page.get_by_role("button", name="Switch between light and dark").click()
    page.reload()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_keyboard_opens_help_and_pages(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{without_keys.url}/").page
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.type("gt")

    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()


def test_two_keys_count_from_when_they_were_pressed(without_keys: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(f"{without_keys.url}/").page
    page.evaluate("""() => {
      const pressed = ["g", "t"].map((key) => new KeyboardEvent("keydown", { key, bubbles: true }));
      const ends = performance.now() + 1600;
      document.body.dispatchEvent(pressed[0]);
      while (performance.now() < ends);  // as a page that is busy
      document.body.dispatchEvent(pressed[1]);
    }""")

    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()


def test_a_person_logs_in_and_out(with_keys: KeyedService, open_page: OpenPage) -> None:
    watched = open_page(f"{with_keys.url}/console/topics?cursor=", token=None)
    watched.expected_statuses = {401, 422}
    page = watched.page
    page.get_by_label("Key", exact=True).fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("This key is not known to the service.")

    page.goto(f"{with_keys.url}/")
    page.get_by_label("Key", exact=True).fill(with_keys.keys.tokens["admin"])
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_title(TITLE_OF_NOW)
    [cookie] = [one for one in page.context.cookies() if one["name"] == "deferd_session"]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Lax", "/")

    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in · deferd")
    page.goto(f"{with_keys.url}/")
    expect(page).to_have_title("Log in · deferd")


@pytest.fixture
def elsewhere(with_keys: KeyedService, open_page: OpenPage, topic: str) -> Callable[[str], Page]:
    """Opens a page of another origin, with a link and a form to a topic, in a browser that has a session."""
    put(with_keys.service, topic, with_keys.keys.tokens["admin"])
    console = f"{with_keys.url}/console/topics/{topic}"
    context = open_page(f"{with_keys.url}/", token=with_keys.keys.tokens["everything"]).page.context
    form = f'<form method="post" action="{console}/pause"><button>Pause</button></form>'

    content = f'<a href="{console}">Look</a>{form}'

    def open_there(url: str) -> Page:
        page = context.new_page()
        page.route(url, lambda route: route.fulfill(body=content, content_type="text/html"))
        page.goto(url)
        return page

    return open_there


OTHER_SITE, OTHER_PORT = "http://chat.example/", "http://127.0.0.1:8899/"


@pytest.mark.parametrize("other", [OTHER_SITE, OTHER_PORT])
def test_a_link_of_another_site_opens_its_page(elsewhere: Callable[[str], Page], topic: str, other: str) -> None:
    page = elsewhere(other)
    page.get_by_role("link", name="Look").click()
    expect(page.get_by_role("heading", name=topic, level=1)).to_be_visible()


@pytest.mark.parametrize("other", [OTHER_SITE, OTHER_PORT])
def test_a_form_of_another_site_changes_nothing(
    elsewhere: Callable[[str], Page], with_keys: KeyedService, topic: str, other: str
) -> None:
    page = elsewhere(other)
    with page.expect_navigation():
        page.get_by_role("button", name="Pause").click()
    if other == OTHER_PORT:  # it has the session: to a browser the ports of a host are one site
        expect(page.locator("main")).to_contain_text("did not come from a page of this console")
    view = call(with_keys.service, "GET", f"/topics/{topic}", token=with_keys.keys.tokens["read"])
    assert view["paused"] is False


def test_it_works_below_a_prefix(with_keys: KeyedService, behind_prefix: str, open_page: OpenPage, topic: str) -> None:
    put(with_keys.service, topic, with_keys.keys.tokens["admin"])
    page = open_page(f"{behind_prefix}/console/topics", token=with_keys.keys.tokens["read"]).page

    expect(page).to_have_url(f"{behind_prefix}/console/topics")
    expect(page.get_by_role("link", name=topic)).to_be_visible()
    [cookie] = [one for one in page.context.cookies() if one["name"] == "deferd_session"]
    assert cookie["path"] == "/x/deferd/"
    page.get_by_role("link", name="Now", exact=True).click()
    expect(page).to_have_url(f"{behind_prefix}/")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{behind_prefix}/console/login")
    assert [one for one in page.context.cookies() if one["name"] == "deferd_session"] == []


def test_without_javascript_a_person_logs_in_and_reads(
    with_keys: KeyedService, open_page: OpenPage, topic: str
) -> None:
    put(with_keys.service, topic, with_keys.keys.tokens["admin"])
    url = f"{with_keys.url}/console/topics"
    page = open_page(url, token=with_keys.keys.tokens["read"], java_script_enabled=False).page

    row = page.locator(f"[data-row='{topic}'] time")

    def is_listed() -> bool:  # the look at all topics is some seconds old, and nothing reloads the page
        page.reload()
        return row.count() > 0

    wait_until(is_listed, 15, "the topic is listed")
    expect(row).to_contain_text("UTC")
