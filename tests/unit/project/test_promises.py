"""Every promise of docs/guarantees.md names tests that show it, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
GUARANTEES = (TESTS.parent / "docs/guarantees.md").read_text(encoding="utf-8")
SECTION = GUARANTEES.split("\n## Promises\n")[1].split("\n## ")[0]
ROWS = [line for line in SECTION.splitlines() if line.startswith("| **")]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", SECTION)))


def test_each_promise_names_a_test() -> None:
    for row in ROWS:
        shown_by = row.rstrip("|").rpartition("|")[2].strip()
        assert "::test_" in shown_by or shown_by.startswith("the same"), row


def test_the_tests_that_show_promises_exist() -> None:
    sources = {file: (TESTS / file).read_text(encoding="utf-8") for file, _ in NAMED}
    missing = [
        (file, name) for file, name in NAMED if not re.search(rf"^(async )?def {name}\(", sources[file], re.MULTILINE)
    ]
    assert missing == []


def test_the_promises_are_found() -> None:
    assert len(ROWS) >= 26
    assert len(NAMED) >= 35
