"""What a script writes from the tables of the contract is as the script writes it."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/write_policy_options.py"


def test_the_options_of_the_policy_are_those_of_the_table() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["FILE"].read_text(encoding="utf-8") == script["render"]()
