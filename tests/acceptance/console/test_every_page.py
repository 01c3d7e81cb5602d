"""What must hold of every page of the console, also of those that are added later: the list of routes has them all."""

from __future__ import annotations

import contextlib
import html
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Page, ViewportSize, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from deferd.contract.scopes import Scope
from tests.acceptance.console.conftest import KeyedService, OpenPage, console, console_without_read, opened_pages
from tests.acceptance.console.hostile_world import (
    CLIENT,
    ERROR,
    HOSTILE,
    PATHS_OF_JOBS,
    TOPIC,
    fill,
    hostile_consumer,
    page_paths,
)
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import wait_until

pytestmark = pytest.mark.slow(seconds=80)
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
AXE_OF_ALL = "axe.run(document, { resultTypes: ['violations'] })"
AXE_OF_COLORS = """axe.run(document, { resultTypes: ['violations'],
  runOnly: { type: 'rule', values: ['color-contrast', 'link-in-text-block'] } })"""
"""The themes differ in nothing else."""
ADMIN_PAGES = {
    "/console/dead/redrive",
    "/console/dead/cancel",
    "/console/system/audit",
    f"/console/topics/{TOPIC}/audit",
    f"/console/topics/{TOPIC}/bulk",
    f"/console/topics/{TOPIC}/push",
}
"""Pages of what only admins may read: what an action would do, and audits."""
WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 360, "height": 740}
TABS_MAX = 150
BACK_WITHIN_S = 5.0
REDRAWN_WITHIN_S = 3.0
DRAWN = """() => new Promise((drawn) => {
  const look = () => document.querySelector(".htmx-request") ? setTimeout(look, 20) : drawn();
  requestAnimationFrame(() => setTimeout(look, 50));
})"""
"""Wait for what scripts draw at first, and for the parts of the page that they load."""
LOCATE_OPERABLE = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
  const shown = all.filter((one) => !one.disabled && one.type !== "hidden" && one.tabIndex >= 0
    && one.checkVisibility({ visibilityProperty: true }) && !one.closest("dialog:not([open])"));
  for (const region of document.querySelectorAll("[data-region]")) region.setAttribute("data-hold", "");
  const radios = new Set();
  let number = 0;
  for (const one of shown) {
    if (one.type === "radio") {  // one of a group is a stop, arrows go on
      if (radios.has(one.name)) continue;
      radios.add(one.name);
    }
    one.dataset.stop = number;
    number += 1;
  }
  return number;
}"""
NOTE_FOCUS = """() => {
  document.activeElement?.blur();
  window.stops = {};
  document.addEventListener("focusin", ({ target }) => {
    const style = getComputedStyle(target);
    const shown = (style.outlineStyle !== "none" && style.outlineWidth !== "0px") || style.boxShadow !== "none";
    window.stops[target.dataset.stop ?? "other"] = shown ? null : target.outerHTML.slice(0, 120);
  });
}"""
"""Note each element that has the focus from now on, and what it is if that cannot be seen."""


@dataclass
class Seen:
    """What was found on a page: `axe` in both themes, `width` in a window of `NARROW`.

    Of `PATHS_OF_JOBS` there are only `width` and `is_hacked`: the other pages have what axe and the keyboard may find.
    """

    axe: list[str]
    width: int
    is_hacked: bool
    keyboard: list[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    environment = ("--environment", "staging_eu-central-1.of-the-shop", "--environment-color", "orange")
    with running_service(*environment, data_dir=tmp_path_factory.mktemp("world")) as service:
        fill(service.url)
        with hostile_consumer(service.url):
            yield service


@pytest.fixture(scope="module")
def paths(world: ServiceProcess) -> list[str]:
    with httpx.Client(base_url=world.url, verify=NO_TLS) as client:
        wait_until(lambda: CLIENT in client.get("/consumers").text.replace('\\"', '"'), 10, "the consumer was seen")
        return [*page_paths(client), *PATHS_OF_JOBS]


@pytest.fixture(scope="module")
def texts(world: ServiceProcess, paths: list[str]) -> dict[str, str]:
    return {path: httpx.get(world.url + path, verify=NO_TLS).text for path in paths}


@pytest.fixture(scope="module")
def dialogs() -> list[str]:
    return []


@pytest.fixture(scope="module")
def seen(world: ServiceProcess, paths: list[str], browser: Browser, dialogs: list[str]) -> Iterator[dict[str, Seen]]:
    """What each page has, from one look at it."""
    with opened_pages(browser) as open_url:
        watched = open_url(world.url, at_leisure=True)
        watched.expected_statuses = {404, 422}
        page = watched.page

        def on_dialog(dialog: Dialog) -> None:
            dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", on_dialog)
        yield {path: look(page, world.url, path) for path in paths}


def look(page: Page, url: str, path: str) -> Seen:
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    page.goto(url + path)
    page.wait_for_load_state("load")
    page.evaluate(DRAWN)
    axe: list[str] = []
    keyboard: list[str] = []
    if path not in PATHS_OF_JOBS:
        keyboard = keyboard_problems(page, path)  # before a region is read again, which would lose its numbers
        axe = axe_findings(page, AXE_OF_ALL)
    is_hacked = page.evaluate("window.hacked !== undefined || document.querySelector('[data-hacked]') !== null")
    page.set_viewport_size(NARROW)
    with contextlib.suppress(PlaywrightTimeout):  # charts are drawn again a moment later
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth", timeout=REDRAWN_WITHIN_S * 1000)
    return Seen(axe, page.evaluate("document.documentElement.scrollWidth"), is_hacked, keyboard)


def axe_findings(page: Page, in_light: str) -> list[str]:
    """What `in_light` finds in the light theme, and the rules of colours in the dark one."""
    page.evaluate(AXE)
    page.emulate_media(color_scheme="light")
    violations = page.evaluate(in_light)["violations"]
    page.emulate_media(color_scheme="dark")
    violations += page.evaluate(AXE_OF_COLORS)["violations"]
    findings = []
    for found in violations:
        where = [f"{node['target']} {node['failureSummary']}" for node in found["nodes"][:3]]
        findings.append(f"{found['id']}: {found['help']}: {where}")
    return findings


def keyboard_problems(page: Page, path: str) -> list[str]:
    if path.startswith("/console/events"):
        page.keyboard.press("p")  # no new rows meanwhile
    stops = min(page.evaluate(LOCATE_OPERABLE), TABS_MAX)
    page.evaluate(NOTE_FOCUS)
    for _ in range(stops + 5):
        page.keyboard.press("Tab")
    reached = page.evaluate("window.stops")
    hidden = [f"focus is not visible: {what}" for what in reached.values() if what]
    return hidden + [f"not reached: {number}" for number in range(stops) if str(number) not in reached]


def test_axe_finds_nothing_in_both_themes(seen: dict[str, Seen]) -> None:
    findings = [f"{path} {text}" for path, page in seen.items() for text in page.axe]
    assert findings == [], "\n".join(findings)


def test_nothing_scrolls_sideways_at_360_pixels(seen: dict[str, Seen]) -> None:
    assert {path: page.width for path, page in seen.items() if page.width > NARROW["width"]} == {}


def test_the_keyboard_reaches_everything(seen: dict[str, Seen]) -> None:
    assert {path: page.keyboard[:5] for path, page in seen.items() if page.keyboard} == {}


def test_hostile_text_stays_text(
    world: ServiceProcess, seen: dict[str, Seen], dialogs: list[str], open_page: OpenPage
) -> None:
    assert ([path for path, page in seen.items() if page.is_hacked], dialogs) == ([], [])
    page = open_page(f"{world.url}/console/events").page
    expect(page.get_by_text(ERROR[:100]).first).to_be_visible()
    page.goto(f"{world.url}/console/consumers")
    expect(page.get_by_text(CLIENT).first).to_be_visible()


def test_hostile_text_is_on_the_pages(texts: dict[str, str]) -> None:
    raw = [path for path, text in texts.items() if "<img src=x" in text or "<script>window" in text]
    escaped = [path for path, text in texts.items() if "<img src=x" in html.unescape(text)]

    assert raw == []
    assert len(escaped) >= 4, escaped  # else this test would show nothing
    assert HOSTILE in ERROR


def test_a_raw_body_is_not_a_page(world: ServiceProcess) -> None:
    headers = httpx.get(f"{world.url}/console/topics/{TOPIC}/jobs/delayed-1/raw/body", verify=NO_TLS).headers
    assert (headers["content-type"], headers["x-content-type-options"]) == (
        "text/plain; charset=utf-8",
        "nosniff",
    )


def test_every_region_can_be_read_alone(world: ServiceProcess, texts: dict[str, str]) -> None:
    links = [link for text in texts.values() for link in re.findall(r'data-region="[^"]+"[^>]*hx-get="([^"]+)"', text)]
    failed = {}
    for link in links:
        response = httpx.get(f"{world.url}/{html.unescape(link).removeprefix('./')}", verify=NO_TLS)
        if response.status_code != 200 or "<html" in response.text:
            failed[link] = response.status_code

    assert len(links) >= 8
    assert failed == {}


def test_no_page_has_inline_scripts_or_styles(texts: dict[str, str]) -> None:
    inline = re.compile(r"<style|<[a-z][^<>]*\sstyle=|<[a-z][^<>\"']*\son[a-z]+=|<script(?![^>]*\ssrc=)")
    found = {path: inline.findall(text) for path, text in texts.items()}

    assert {path: texts for path, texts in found.items() if texts} == {}


def test_g_and_a_letter_open_each_page_of_the_navigation(world: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(world.url).page
    links = page.locator("nav[aria-label=Pages] a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    letters = {"./": "n", "console/system": "y"}
    with httpx.Client(base_url=world.url, verify=NO_TLS) as client:
        there = [link for link in links if client.get(f"/{link.removeprefix('./')}").status_code == 200]
    assert len(there) >= 7
    for link in there:
        page.keyboard.type("g" + (letters.get(link) or link.rpartition("/")[2][0]))
        page.wait_for_url(f"{world.url}/{link.removeprefix('./')}")
        expect(page.locator("nav[aria-label=Pages] a[aria-current=page]")).to_have_attribute("href", link)


@pytest.fixture(scope="module")
def world_with_keys(with_keys: KeyedService) -> KeyedService:
    fill(with_keys.url, {"Authorization": f"Bearer {with_keys.keys.tokens['admin']}"})
    return with_keys


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_sees_the_pages_of_its_scopes(world_with_keys: KeyedService, scope: Scope) -> None:
    with console(world_with_keys, "admin") as admin:
        paths = page_paths(admin)
    can_read = scope in {Scope.READ, Scope.ADMIN}
    with (console if can_read else console_without_read)(world_with_keys, scope.value) as client:
        for path in paths:
            needed = Scope.ADMIN if path.partition("?")[0] in ADMIN_PAGES else Scope.READ
            response = client.get(path)
            if scope in {needed, Scope.ADMIN}:
                assert response.status_code == 200, path
            else:
                assert response.status_code == 403, path
                assert f"This needs scope <code>{needed}</code>" in response.text, path


def buttons(client: httpx.Client, paths: list[str]) -> set[tuple[str, str]]:
    """The buttons of the pages: all of forms that write, and others that are disabled, with the page of each."""
    found = set()
    for path in paths:
        main = client.get(path).text.partition("<main")[2]
        for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", main, re.DOTALL):
            writing = re.findall(r"<button(?![^>]*(?:type=\"button\"|formmethod=\"get\"))[^>]*>", form)
            found |= {(path, one) for one in writing}
        found |= {(path, one) for one in re.findall(r"<button[^>]*disabled[^>]*>", main)}
    return found


def test_buttons_that_a_key_may_not_use_name_the_scope(world_with_keys: KeyedService) -> None:
    with console(world_with_keys, "read") as reader, console(world_with_keys, "admin") as admin:
        paths = [path for path in page_paths(admin) if path.partition("?")[0] not in ADMIN_PAGES]
        of_reader, of_admin = buttons(reader, paths), buttons(admin, paths)
    assert len({path for path, _ in of_reader}) >= 5
    assert [one for one in of_reader if "disabled" not in one[1] or "needs scope" not in one[1]] == []
    assert [one for one in of_admin if "needs scope" in one[1]] == []


def narrow_problems(page: Page, findings: list[str]) -> list[str]:
    """What axe found, and whether the page scrolls sideways."""
    width = page.evaluate("document.documentElement.scrollWidth")
    return [*findings, *([f"is {width} wide"] if width > NARROW["width"] else [])]


def test_pages_are_sound_with_a_key_that_only_reads_and_dim_and_recover_when_the_store_is_down(
    world_with_keys: KeyedService, open_page: OpenPage
) -> None:
    with console(world_with_keys, "admin") as admin, console(world_with_keys, "read") as reader:
        paths = [path for path in page_paths(admin) if path.partition("?")[0] not in ADMIN_PAGES]
        texts = {path: reader.get(path).text for path in paths}
    token = world_with_keys.keys.tokens["read"]
    first = open_page(f"{world_with_keys.url}/", token=token, viewport=NARROW, at_leisure=True)
    pages: dict[str, Page] = {}
    problems: dict[str, list[str]] = {}
    for path, text in texts.items():
        watched = open_page(world_with_keys.url + path, beside=first)
        watched.expected_statuses = {0, 500, 503}
        problems[path] = narrow_problems(watched.page, axe_findings(watched.page, AXE_OF_ALL))
        if 'data-region="' in text:
            pages[path] = watched.page
        else:
            watched.page.close()
    first.page.close()
    assert len(pages) >= 7
    store = world_with_keys.service.store_pid()
    assert store is not None
    os.kill(store, signal.SIGSTOP)
    try:
        for path, page in pages.items():
            note = page.locator(".stale-note").first
            note.wait_for(timeout=30_000)
            assert re.search(r"\d+ (ms|s|min).* old; trying again", note.inner_text()), path
            assert page.locator("[data-region].stale").count() > 0, path
            problems[f"stale {path}"] = narrow_problems(page, axe_findings(page, AXE_OF_COLORS))
        page.goto(f"{world_with_keys.url}/console/topics")
        expect(page.get_by_role("heading", name="Service Unavailable")).to_be_visible()
        problems["503"] = narrow_problems(page, axe_findings(page, AXE_OF_ALL))
    finally:
        os.kill(store, signal.SIGCONT)
    ends_s = time.monotonic() + BACK_WITHIN_S
    for page in pages.values():
        left_s = max(ends_s - time.monotonic(), 0.1)
        expect(page.locator(".stale-note")).to_have_count(0, timeout=left_s * 1000)
    page.get_by_role("link", name="Try again").click()
    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    assert {path: found for path, found in problems.items() if found} == {}
