"""Measured figures stand in the pages as in `docs/figures.json`, which the benchmarks write."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import measuring

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts/write_figures.py"))
FIGURES: dict[str, dict[str, Any]] = SCRIPT["FIGURES"]
PAGES: dict[str, str] = {path.name: path.read_text(encoding="utf-8") for path in SCRIPT["PAGES"]}
OF_MEASUREMENTS = {"benchmarks.md", "scale.md", "shelf.md"}
"""Their tables have more figures than other pages repeat, as they were measured."""
_BY_HAND = {
    "a rate": r"\d (?:jobs|puts|calls|requests|pushes|SADD)/s",
    "lateness": r"\bp(?:50|9\d) \d|\d ms at p99|\d ms[^.]*\(p99\)|% within \d",
    "memory": r"\bmemory\b.*\d bytes|\d bytes\b.*\bmemory\b|\d [MG]B (?:of memory|in one process)",
    "a start": r"\bready \d|\bre-?starts?:? \d",
}
"""Measured figures of these kinds. A rate that somebody chose is written "2,000 jobs a second"."""


def test_pages_state_figures_as_they_were_measured() -> None:
    stale = [path.name for path in SCRIPT["PAGES"] if SCRIPT["render"](path) != PAGES[path.name]]
    assert stale == [], "run: python scripts/write_figures.py"


def test_a_figure_is_on_some_page_and_measured_by_a_benchmark() -> None:
    used = {name for text in PAGES.values() for name in SCRIPT["MARKED"].findall(text)}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/benchmarks").glob("*.py"))
    names = re.findall(r'record_figure\(\s*f?"([^"]+)"', sources)
    recorded = re.compile("|".join(re.sub(r"\{[^}]+\}", r"\\w+", name) for name in names))
    assert {name for name in FIGURES if recorded.fullmatch(name)} == set(FIGURES) == used


def test_a_figure_was_measured_of_what_is_committed() -> None:
    assert [name for name, figure in FIGURES.items() if (figure["commit"] or "").endswith("+")] == []


def test_a_marker_is_within_its_line_and_closed() -> None:
    """One that begins a line is a block of HTML to mkdocs, and ends the paragraph."""
    for name, text in PAGES.items():
        assert text.count("<!--/-->") == len(SCRIPT["MARKED"].findall(text)), name
        assert re.findall(r"^\s*<!--[a-z0-9-]+-->.*", text, re.MULTILINE) == [], name


def test_no_measured_figure_is_written_by_hand() -> None:
    found = []
    for name in PAGES.keys() - OF_MEASUREMENTS:
        prose = re.sub(r"^( *)```.*?^\1```$|`[^`\n]*`", "", PAGES[name], flags=re.MULTILINE | re.DOTALL)
        for line in SCRIPT["MARKED"].sub("", prose).splitlines():
            found += [(name, kind, line) for kind, pattern in _BY_HAND.items() if re.search(pattern, line)]
    assert found == [], "name it in docs/figures.json: see CONTRIBUTING.md, Record a figure"


def test_runs_of_one_version_make_a_range_and_another_version_replaces_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "figures.json"
    file.write_text('{"late": {}}')
    monkeypatch.setenv("FIGURES", str(file))

    def record(value: float, *, commit: str = "1a", flags: str = "", name: str = "late") -> tuple[str, str]:
        monkeypatch.setattr(measuring, "_service_commit", lambda: commit)
        monkeypatch.setattr(sys, "orig_argv", ["/bin/python", "-m", "tests.benchmarks.lateness", *flags.split()])

        async def from_a_loop() -> None:
            measuring.record_figure(name, value, "ms")

        asyncio.run(from_a_loop())
        figures = json.loads(file.read_text())
        assert figures.keys() == {"late"}
        return SCRIPT["shown"](figures["late"]), figures["late"]["commit"]

    assert record(1.449) == ("1.4 ms", "1a")
    assert record(12.9) == ("1.4 to 13 ms", "1a")
    assert record(99, flags="--rate 9") == record(99, name="other") == ("1.4 to 13 ms", "1a")
    assert record(0.996, commit="2b") == ("1.0 ms", "2b")
