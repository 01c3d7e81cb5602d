"""The workflow of the forge: it calls the scripts that people call, on every Python that the package names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / ".github/workflows/ci.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
JOBS: dict[str, Any] = WORKFLOW["jobs"]
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]


def test_the_workflow_runs_scripts_that_people_run_and_nothing_else() -> None:
    commands = {step["run"].removeprefix('sudo env "PATH=$PATH" ') for step in STEPS if "run" in step}
    programs = {command.split()[0] for command in commands}

    assert programs == {".ci/run", "scripts/check", "scripts/image", "scripts/install", "scripts/release"}
    assert "scripts/release --check" in commands
    assert not any(re.search(r"[|;&$\n]", command) for command in commands)


def test_the_workflow_tests_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))

    assert JOBS["test"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_the_job_with_the_tests_gets_the_whole_history() -> None:
    """Else those that need the previous release are skipped: see `tests.previous_release`."""
    [job] = [job for job in JOBS.values() if any(".ci/run" in step.get("run", "") for step in job["steps"])]
    [checkout] = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]

    assert checkout["with"]["fetch-depth"] == 0


def test_every_action_is_pinned_to_a_commit_whose_version_is_named() -> None:
    uses = re.findall(r"\buses: (.*)", FILE.read_text(encoding="utf-8"))

    assert len(uses) == sum("uses" in step for step in STEPS)
    assert [] == [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)]


def test_a_job_reads_the_source_and_may_do_nothing_else_and_ends() -> None:
    assert WORKFLOW["permissions"] == {}
    for name, job in JOBS.items():
        assert job["permissions"] == {"contents": "read"}, name
        assert 0 < job["timeout-minutes"] <= 120, name


def test_the_image_comes_with_a_list_of_its_parts_and_its_provenance() -> None:
    [build] = [step["run"].split() for step in JOBS["image"]["steps"] if "run" in step]

    assert build[0] == "scripts/image"
    assert {"--sbom=true", "--provenance=mode=max"} <= set(build)
