"""What must hold of every page of the console, also of those that are added later: the list of routes has them all."""

from __future__ import annotations

import contextlib
import html
import os
import re
import signal
import time
from collections.abc import Iterator
from importlib.resources import files

import httpx
import pytest
from playwright.sync_api import Dialog, Page, expect

from deferd.contract.scopes import Scope
from tests.acceptance.console.conftest import OWN_PAGE, KeyedService, OpenPage
from tests.acceptance.console.hostile_world import CLIENT, ERROR, HOSTILE, TOPIC, fill, hostile_consumer, page_paths
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
AXE_OF_COLORS = """axe.run(document, { resultTypes: ['violations'],
  runOnly: { type: 'rule', values: ['color-contrast', 'link-in-text-block'] } })"""
"""The themes differ in nothing else."""
ADMIN_PAGES = {
    "/console/dead/redrive",
    "/console/dead/purge",
    "/console/system/audit",
    f"/console/topics/{TOPIC}/audit",
}
"""Pages of what only admins may read: what an action would do, and audits."""
NARROW = {"width": 360, "height": 740}
TABS_MAX = 150
BACK_WITHIN_S = 5.0
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
FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one);
  const shown = (style.outlineStyle !== "none" && style.outlineWidth !== "0px") || style.boxShadow !== "none";
  return { stop: one.dataset.stop ?? null, shown, what: one.outerHTML.slice(0, 120) };
}"""


@pytest.fixture(scope="module")
def world(without_keys: ServiceProcess) -> Iterator[ServiceProcess]:
    fill(without_keys.url)
    with hostile_consumer(without_keys.url):
        yield without_keys


@pytest.fixture(scope="module")
def paths(world: ServiceProcess) -> list[str]:
    with httpx.Client(base_url=world.url, verify=NO_TLS) as client:
        wait_until(lambda: CLIENT in client.get("/consumers").text.replace('\\"', '"'), 10, "the consumer was seen")
        return page_paths(client)


def settle(page: Page) -> None:
    """Wait until scripts have drawn what they draw at first."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(300)


def test_axe_finds_nothing_in_both_themes(world: ServiceProcess, paths: list[str], open_page: OpenPage) -> None:
    page = open_page(world.url, color_scheme="light").page
    findings: dict[str, list[str]] = {}
    for path in paths:
        page.emulate_media(color_scheme="light")
        page.goto(world.url + path)
        settle(page)
        page.evaluate(AXE)
        violations = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        page.emulate_media(color_scheme="dark")
        violations += page.evaluate(AXE_OF_COLORS)["violations"]
        for found in violations:
            where = [f"{node['target']} {node['failureSummary']}" for node in found["nodes"][:3]]
            findings.setdefault(path, []).append(f"{found['id']}: {found['help']}: {where}")

    assert findings == {}, "\n".join(f"{path} {text}" for path, texts in findings.items() for text in texts)


def test_nothing_scrolls_sideways_at_360_pixels(world: ServiceProcess, paths: list[str], open_page: OpenPage) -> None:
    page = open_page(world.url, viewport=NARROW).page
    widths = {}
    for path in paths:
        page.goto(world.url + path)
        settle(page)
        widths[path] = page.evaluate("document.documentElement.scrollWidth")

    assert {path: width for path, width in widths.items() if width > NARROW["width"]} == {}


def test_hostile_text_stays_text(world: ServiceProcess, paths: list[str], open_page: OpenPage) -> None:
    page = open_page(world.url).page
    dialogs: list[str] = []

    def on_dialog(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", on_dialog)
    executed = []
    for path in paths:
        page.goto(world.url + path)
        settle(page)
        if page.evaluate("window.hacked !== undefined || document.querySelector('[data-hacked]') !== null"):
            executed.append(path)
    assert (executed, dialogs) == ([], [])

    page.goto(f"{world.url}/console/events")
    expect(page.get_by_text(ERROR).first).to_be_visible()
    page.goto(f"{world.url}/console/consumers")
    expect(page.get_by_text(CLIENT).first).to_be_visible()


def test_hostile_text_is_on_the_pages(world: ServiceProcess, paths: list[str]) -> None:
    texts = {path: httpx.get(world.url + path, verify=NO_TLS).text for path in paths}
    raw = [path for path, text in texts.items() if "<img src=x" in text or "<script>window" in text]
    escaped = [path for path, text in texts.items() if "<img src=x" in html.unescape(text)]

    assert raw == []
    assert len(escaped) >= 4, escaped  # else this test would show nothing
    assert HOSTILE in ERROR


def test_every_region_can_be_read_alone(world: ServiceProcess, paths: list[str]) -> None:
    failed = {}
    regions = 0
    for path in paths:
        text = httpx.get(world.url + path, verify=NO_TLS).text
        for link in re.findall(r'data-region="[^"]+"[^>]*hx-get="([^"]+)"', text):
            regions += 1
            response = httpx.get(f"{world.url}/{html.unescape(link).removeprefix('./')}", verify=NO_TLS)
            if response.status_code != 200 or "<html" in response.text:
                failed[link] = response.status_code

    assert regions >= 8
    assert failed == {}


def test_no_page_has_inline_scripts_or_styles(world: ServiceProcess, paths: list[str]) -> None:
    inline = re.compile(r"<style|<[a-z][^<>]*\sstyle=|<[a-z][^<>\"']*\son[a-z]+=|<script(?![^>]*\ssrc=)")
    found = {path: inline.findall(httpx.get(world.url + path, verify=NO_TLS).text) for path in paths}

    assert {path: texts for path, texts in found.items() if texts} == {}


def test_the_keyboard_reaches_everything(world: ServiceProcess, paths: list[str], open_page: OpenPage) -> None:
    page = open_page(world.url).page
    missed: dict[str, list[str]] = {}
    for path in paths:
        page.goto(world.url + path)
        settle(page)
        if path.startswith("/console/events"):
            page.keyboard.press("p")  # no new rows meanwhile
        stops = page.evaluate(LOCATE_OPERABLE)
        page.evaluate("document.activeElement?.blur()")
        reached: set[str] = set()
        problems = []
        for _ in range(min(stops, TABS_MAX) + 5):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused is None:
                continue
            if focused["stop"] is not None:
                reached.add(focused["stop"])
            if not focused["shown"]:
                problems.append(f"focus is not visible: {focused['what']}")
        problems += [f"not reached: {number}" for number in range(min(stops, TABS_MAX)) if str(number) not in reached]
        if problems:
            missed[path] = problems[:5]

    assert missed == {}


def test_g_and_a_letter_open_each_page_of_the_navigation(world: ServiceProcess, open_page: OpenPage) -> None:
    page = open_page(world.url).page
    links = page.locator("nav[aria-label=Pages] a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    letters = {"./": "n", "console/system": "y"}
    with httpx.Client(base_url=world.url, verify=NO_TLS) as client:
        there = [link for link in links if client.get(f"/{link.removeprefix('./')}").status_code == 200]
    assert len(there) >= 7
    for link in there:
        page.keyboard.press("g")
        page.keyboard.press(letters.get(link) or link.rpartition("/")[2][0])
        page.wait_for_url(f"{world.url}/{link.removeprefix('./')}")
        expect(page.locator("nav[aria-label=Pages] a[aria-current=page]")).to_have_attribute("href", link)


@contextlib.contextmanager
def log_in(service: KeyedService, name: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, verify=NO_TLS) as client:
        sent = {"key": service.keys.tokens[name]}
        assert client.post("/console/login", data=sent, headers=OWN_PAGE).status_code == 303
        yield client


@pytest.fixture(scope="module")
def world_with_keys(with_keys: KeyedService) -> KeyedService:
    fill(with_keys.url, {"Authorization": f"Bearer {with_keys.keys.tokens['admin']}"})
    return with_keys


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_sees_the_pages_of_its_scopes(world_with_keys: KeyedService, scope: Scope) -> None:
    with log_in(world_with_keys, "admin") as admin:
        paths = page_paths(admin)
    with log_in(world_with_keys, scope.value) as client:
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
            found |= {(path, one) for one in re.findall(r"<button(?![^>]*type=\"button\")[^>]*>", form)}
        found |= {(path, one) for one in re.findall(r"<button[^>]*disabled[^>]*>", main)}
    return found


def test_buttons_that_a_key_may_not_use_name_the_scope(world_with_keys: KeyedService) -> None:
    with log_in(world_with_keys, "read") as reader, log_in(world_with_keys, "admin") as admin:
        paths = [path for path in page_paths(admin) if path.partition("?")[0] not in ADMIN_PAGES]
        of_reader, of_admin = buttons(reader, paths), buttons(admin, paths)
    assert len({path for path, _ in of_reader}) >= 5
    assert [one for one in of_reader if "disabled" not in one[1] or "needs scope" not in one[1]] == []
    assert [one for one in of_admin if "needs scope" in one[1]] == []


def test_all_pages_dim_while_the_store_is_down_and_recover(
    world: ServiceProcess, paths: list[str], open_page: OpenPage
) -> None:
    pages: dict[str, Page] = {}
    for path in paths:
        if 'data-region="' not in httpx.get(world.url + path, verify=NO_TLS).text:
            continue
        watched = open_page(world.url + path)
        watched.expected_statuses = {0, 500, 503}
        pages[path] = watched.page
    assert len(pages) >= 7
    store = world.store_pid()
    assert store is not None
    os.kill(store, signal.SIGSTOP)
    try:
        for path, page in pages.items():
            note = page.locator(".stale-note").first
            note.wait_for(timeout=30_000)
            assert re.search(r"\d+ (ms|s|min).* old; trying again", note.inner_text()), path
            assert page.locator("[data-region].stale").count() > 0, path
    finally:
        os.kill(store, signal.SIGCONT)
    ends_s = time.monotonic() + BACK_WITHIN_S
    for page in pages.values():
        left_s = max(ends_s - time.monotonic(), 0.1)
        expect(page.locator(".stale-note")).to_have_count(0, timeout=left_s * 1000)
