"""Programs on clients that generators make from openapi/openapi.yaml work with a real service.

They need npm, Go, Maven, Cargo and the registries of their packages, so the suite does not collect this file;
`.ci/run` names it::

    python -m pytest -m slow tests/acceptance/api/generated_programs.py

A language whose tools are not installed is skipped. For Python see test_generated_client.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.api.generated_scenario import SEEN, service_without_store
from tests.acceptance.service_process import ServiceProcess
from tests.go_toolchain import go
from tests.programs import require_program

HERE = Path(__file__).parent
BUILD_S = 280.0
RUN_S = 40.0
NPM_INSTALL = ("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline")
SHORT_LIVED = {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Maven ends before Java's optimizing compiler pays for itself; without that it takes half the time."""


class Language(NamedTuple):
    """The required tools, the steps that build the program, and the one that runs it, all in its directory."""

    tools: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    program: tuple[str, ...]


LANGUAGES = {
    "typescript": Language(
        ("npm", "node"),
        (NPM_INSTALL, ("npm", "run", "build")),
        ("node", "generated/programs/program.js"),
    ),
    "go": Language(
        ("go",),
        (("go", "generate", "."), ("go", "build", "-buildvcs=false", "-o", "generated/program", ".")),
        ("generated/program",),
    ),
    "java": Language(
        ("java", "mvn"),
        (("mvn", "--quiet", "--batch-mode", "package"),),
        ("java", "-cp", "generated/classes:generated/libraries/*", "test.deferd.Program"),
    ),
    "rust": Language(
        ("cargo", "java", "mvn"),
        (
            ("mvn", "--quiet", "--batch-mode", "generate-sources"),
            ("cargo", "build", "--quiet", "--locked", "--target-dir", "generated/target"),
        ),
        ("generated/target/debug/deferd-rust-check",),
    ),
}


@pytest.fixture(scope="module")
def without_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with service_without_store(tmp_path_factory.mktemp("without-store")) as service:
        yield service


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_on_a_generated_client_works(
    language: str, shared_service: ServiceProcess, without_store: ServiceProcess, topic: str
) -> None:
    tools, build, program = LANGUAGES[language]
    for tool in tools:
        require_program(tool)
    folder = HERE / language
    for step in build:
        run(folder, *step, timeout_s=BUILD_S)
    seen = run(folder, *program, shared_service.url, without_store.url, topic, timeout_s=RUN_S)
    assert json.loads(seen) == SEEN


def run(folder: Path, *command: str, timeout_s: float) -> str:
    """The standard output of a command, which must succeed."""
    if command[0] == "go":
        return go(folder, *command[1:], timeout_s=timeout_s)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **SHORT_LIVED},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout
