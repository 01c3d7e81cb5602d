"""The page of the Redis protocol: its programs run as they stand, and its tables name all commands and options."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deferd.api.resp.execution import COMMANDS
from deferd.api.resp.job_commands import PUT_OPTIONS
from tests.acceptance.project.test_readme import DOCUMENTS, ROOT, blocks
from tests.acceptance.resp_calls import resp_port
from tests.acceptance.service_process import ServiceProcess
from tests.go_toolchain import go
from tests.programs import without

CLIENTS = ROOT / "tests/acceptance/api"
BUILD_S = 280
RUN_S = 40
PORT = re.compile(r"\b6380\b")


def run(folder: Path, *command: str, timeout_s: int = RUN_S) -> list[str]:
    """The lines that a command prints. It must succeed."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout.splitlines()


def write_program(path: Path, language: str, service: ServiceProcess) -> Path:
    """Write the page's program in a language, for the port of this service."""
    [program] = blocks("redis-protocol", language)
    program, ports = PORT.subn(str(resp_port(service)), program)
    assert ports == 1
    path.write_text(program, encoding="utf-8")
    return path


def test_the_program_runs(resp_service: ServiceProcess, tmp_path: Path) -> None:
    program = write_program(tmp_path / "program.py", "python", resp_service)
    assert run(tmp_path, sys.executable, str(program)) == ["hello ada ['hello grace']", 'closing {"order":1042}']


@pytest.mark.slow
@pytest.mark.needs("npm", "node")
def test_the_program_for_node_runs(resp_service: ServiceProcess, tmp_path: Path) -> None:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(CLIENTS / "resp_node" / name, tmp_path)
    run(tmp_path, "npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", timeout_s=BUILD_S)
    program = write_program(tmp_path / "program.js", "js", resp_service)
    assert run(tmp_path, "node", str(program)) == ["hello ada [ 'hello grace' ]", "closing order-1042"]


@pytest.mark.slow
@pytest.mark.needs("go")
def test_the_program_for_go_runs(resp_service: ServiceProcess, tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(CLIENTS / "resp_go" / name, tmp_path)
    write_program(tmp_path / "main.go", "go", resp_service)
    go(tmp_path, "build", "-mod=readonly", "-buildvcs=false", "-o", "program", ".", timeout_s=BUILD_S)
    assert run(tmp_path, "./program") == ["[hello ada hello grace]", "closing order-1042"]


@pytest.mark.slow
@pytest.mark.needs("php")
def test_the_program_for_php_runs(resp_service: ServiceProcess, tmp_path: Path) -> None:
    if "redis" not in run(tmp_path, "php", "-m"):
        without("the module redis of PHP")
    program = write_program(tmp_path / "program.php", "php", resp_service)
    assert run(tmp_path, "php", str(program)) == ["hello ada hello grace", "closing order-1042"]


def test_all_commands_and_options_are_documented() -> None:
    words = set(re.findall(r"[A-Z][A-Z.]+", DOCUMENTS["redis-protocol"] + DOCUMENTS["glossary"]))
    assert {name.decode() for name in (*COMMANDS, *PUT_OPTIONS)} - words == set()
