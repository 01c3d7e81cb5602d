"""Every promise of docs/guarantees.md names tests that show it, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
GUARANTEES = (TESTS.parent / "docs/guarantees.md").read_text(encoding="utf-8")
SECTION = GUARANTEES.split("\n## Promises\n")[1].split("\n## ")[0]
ROWS = [line for line in SECTION.splitlines() if line.startswith("| **")]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", SECTION)))


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_a_test(row: str) -> None:
    shown_by = row.rstrip("|").rpartition("|")[2]

    assert "::test_" in shown_by or shown_by.strip().startswith("the same")


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_shows_a_promise_exists(file: str, name: str) -> None:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))

    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_promises_are_found() -> None:
    assert len(ROWS) >= 26
    assert len(NAMED) >= 35
