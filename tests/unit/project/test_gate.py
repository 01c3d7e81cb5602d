"""The checks of the source: lint, format, types, imports, names. With them pytest is the whole gate."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sysconfig.get_path("scripts"))

pytestmark = pytest.mark.gate


def passes(tool: str, *arguments: str) -> None:
    """Run a tool of this environment at the root of the repository; fail with its output unless it exits with 0."""
    run = subprocess.run(
        [TOOLS / tool, *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    if run.returncode != 0:
        pytest.fail(f"{tool} {' '.join(arguments)} exited with {run.returncode}:\n{run.stdout}", pytrace=False)


def sources(*suffixes: str) -> Iterator[Path]:
    """The hand-written files with these suffixes in app and tests."""
    for folder in ("app", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and not {"node_modules", "generated", "__pycache__"} & set(path.parts):
                yield path


def test_the_source_is_free_of_lint() -> None:
    passes("ruff", "check")


def test_the_source_is_formatted() -> None:
    passes("ruff", "format", "--check", "--diff")


@pytest.mark.slow(seconds=90)
def test_the_types_hold() -> None:
    passes("mypy")


def test_imports_run_one_way() -> None:
    passes("lint-imports")


def test_the_dockerfile_is_free_of_lint() -> None:
    passes("hadolint", "--failure-threshold", "info", "Dockerfile")


def test_the_workflow_of_the_forge_is_free_of_lint() -> None:
    passes("check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/ci.yml")
    passes("zizmor", "--offline", "--no-config", "--no-progress", "--persona", "auditor", ".github/workflows")


def test_no_module_has_a_vague_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}

    assert [] == [str(path.relative_to(ROOT)) for path in sources(".py", ".lua", ".ts") if path.stem in vague]
