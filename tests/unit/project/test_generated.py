"""What a script writes from the tables of the contract is as the script writes it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.mark.parametrize("name", ["write_policy_options", "write_verbs"])
def test_the_file_is_as_its_script_writes_it(name: str) -> None:
    script = runpy.run_path(str(SCRIPTS / f"{name}.py"))
    assert script["FILE"].read_text(encoding="utf-8") == script["render"](), f"run: python scripts/{name}.py"
