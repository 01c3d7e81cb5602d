"""What people install and what CI runs: the package, its lock files, its licence and changelog, the scripts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import deferd
from deferd.version import how_to_install
from tests.openapi_document import openapi_document
from tests.programs import require_program

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BASE: list[str] = PYPROJECT["project"]["dependencies"]
SERVER: list[str] = PYPROJECT["project"]["optional-dependencies"]["server"]
CLI: list[str] = PYPROJECT["project"]["optional-dependencies"]["cli"]
OUTBOX: list[str] = PYPROJECT["project"]["optional-dependencies"]["outbox"]
WORKER: list[str] = PYPROJECT["project"]["optional-dependencies"]["worker"]
DEV: list[str] = PYPROJECT["dependency-groups"]["dev"]
DOCS: list[str] = PYPROJECT["dependency-groups"]["docs"]


def pins(lock: str) -> dict[str, Version]:
    """The packages of a lock file with their versions."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {
        canonicalize_name(name): Version(version)
        for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    }


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.lock", BASE + SERVER + CLI + OUTBOX),
        ("requirements-dev.lock", BASE + SERVER + CLI + OUTBOX + DEV),
        ("requirements-docs.lock", DOCS),
    ],
)
def test_a_lock_has_every_requirement_of_the_package(lock: str, wanted: list[str]) -> None:
    pinned = pins(lock)
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{lock} lacks {requirement.name}: make it again with the command at its top"
        assert version in requirement.specifier, (
            f"{lock} pins {requirement.name} {version}, not {requirement.specifier}"
        )


def test_the_command_line_needs_the_same_in_every_extra() -> None:
    [of_worker] = WORKER
    assert of_worker in CLI
    assert of_worker in OUTBOX
    assert of_worker in SERVER


def test_without_the_command_line_installed_the_command_says_what_to_install() -> None:
    """As with the base install."""
    hide = "import sys; sys.modules['click'] = None; from deferd.__main__ import main; sys.exit(main())"
    for word, extra in (("topics", "cli"), ("worker", "worker"), ("serve", "server")):
        ran = subprocess.run(
            [sys.executable, "-c", hide, word], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr == f"deferd: the command line needs click, which is missing: {how_to_install(extra)}\n"


def test_tests_use_the_versions_of_the_service() -> None:
    tested = pins("requirements-dev.lock")

    assert {name: tested[name] for name in pins("requirements.lock")} == pins("requirements.lock")


def test_the_build_lock_has_the_backend_and_its_requirements() -> None:
    pinned = pins("requirements-build.lock")
    wanted = list(map(Requirement, PYPROJECT["build-system"]["requires"]))
    for name in pinned:
        needs = map(Requirement, metadata.requires(name) or [])
        wanted += [one for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
    for requirement in wanted:
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert {name: pins("requirements-dev.lock")[name] for name in pinned} == pinned


@pytest.mark.parametrize("lock", [file.name for file in ROOT.glob("requirements*.lock")])
def test_a_lock_works_on_any_machine(lock: str) -> None:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.lstrip().startswith("#")]

    foreign = re.compile(r"://|^\s*-|file:|@ ")
    assert [] == [line for line in entries if foreign.search(line) and not line.lstrip().startswith("--hash=sha256:")]
    assert not any("://" in line for line in lines)
    assert all(line.startswith("    --hash=sha256:") or line.endswith(" \\") for line in entries)


@pytest.mark.parametrize("name", ["typescript", "resp_node"])
def test_the_npm_lock_works_with_any_registry(name: str) -> None:
    folder = ROOT / "tests/acceptance/api" / name
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    locked = {name.removeprefix("node_modules/"): entry for name, entry in lock["packages"].items() if name}

    assert [] == [name for name, entry in locked.items() if "resolved" in entry or "integrity" not in entry]
    assert wanted == {name: locked[name]["version"] for name in wanted}


def test_the_package_has_its_version() -> None:
    assert deferd.__version__ == PYPROJECT["project"]["version"]


def test_importing_the_package_imports_no_other_module() -> None:
    code = """
import __future__, importlib, sys, typing
before = {*sys.modules}
import deferd
print(*{*sys.modules} - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert ran.stdout.split() == ["deferd"]


def test_the_vendored_files_are_those_that_were_fetched() -> None:
    script = runpy.run_path(str(ROOT / "scripts/vendor_console.py"))
    folder: Path = script["FOLDER"]
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    assert {file.name: file.sha256 for file in script["FILES"]} == sums


def test_the_wheel_has_the_package_with_its_scripts_and_types(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=280)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "app"
    console = package / "deferd/console"
    pages = [path for name in ("templates", "static") for path in (console / name).rglob("*") if path.is_file()]
    source = [path for path in package.rglob("*.*") if path.suffix in {".py", ".lua", ".sql"}]
    wanted = {path.relative_to(package).as_posix() for path in source + pages}

    assert wanted | {"deferd/py.typed"} == held


def test_the_changelog_has_unreleased_changes_on_top_and_then_the_version_of_the_package() -> None:
    headings = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert headings[:2] == ["Unreleased", PYPROJECT["project"]["version"]]


def test_the_api_document_has_the_version_of_the_package() -> None:
    assert openapi_document()["info"]["version"] == PYPROJECT["project"]["version"]


class Ci:
    """A copy of `.ci/run` whose commands only note how they are called, which is in `commands`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (folder / ".ci").mkdir()
        shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
        self.program(".ci/install", "echo install")
        self.program("scripts/lint-openapi", "echo lint")
        self.program("scripts/test-lowest", "echo lowest")
        note = 'printf "%s\\n" "$CI $*"'
        install_python = "mkdir -p .venv/bin; cp programs/noting .venv/bin/python"
        self.program("programs/noting", note)
        self.program("programs/bash", f"{note}; {install_python}")
        # pyenv's python3 is a script that would run the bash above.
        (folder / "programs/python3").symlink_to(sys.executable)
        self.go_toolchain = folder / "tests/go_toolchain.py"
        self.go_toolchain.parent.mkdir()
        self.go_toolchain.touch()

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{{ {script}; }} >>{self.notes}\n")
        path.chmod(0o755)

    def run(self) -> int:
        (self.folder / "README.md").write_text(self.readme, encoding="utf-8")
        environment = {"PATH": f"{self.folder / 'programs'}:{os.environ['PATH']}"}
        run = subprocess.run(["/bin/bash", self.folder / ".ci/run"], env=environment, timeout=20, check=False)
        return run.returncode

    @property
    def commands(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


def test_ci_runs_the_second_code_block_of_the_readme_and_then_the_slow_tests(ci: Ci) -> None:
    [_, test_command, *_] = re.findall(r"^```[^\n]*\n(.*?)\n```", ci.readme, re.MULTILINE | re.DOTALL)

    assert ci.run() == 0
    assert ci.commands[0] == "install"
    # Two at a time.
    assert sorted(ci.commands[1:3]) == ["lint", f"true -euo pipefail -c {test_command}"]
    lowest, slow = sorted(ci.commands[3:])
    assert lowest == "lowest"
    assert slow.startswith("true -m pytest -n ")
    assert " -m slow or hypothesis --hypothesis-profile full " in slow


def test_ci_runs_no_other_block_of_the_readme(ci: Ci) -> None:
    ci.readme = ci.readme.replace("pytest", "true")
    assert (ci.run(), ci.commands) == (2, [])


@pytest.mark.parametrize(
    ("program", "count"),
    [
        *((".ci/install", 1), ("scripts/lint-openapi", 3), ("programs/bash", 3)),
        *(("programs/noting", 5), ("scripts/test-lowest", 5)),
    ],
)
def test_ci_fails_with_the_first_command_that_fails(ci: Ci, program: str, count: int) -> None:
    path = ci.folder / program
    path.write_text(path.read_text() + "exit 3\n")
    assert (ci.run(), len(ci.commands)) == (3, count)


def test_ci_fails_where_go_compiles_nothing(ci: Ci) -> None:
    ci.go_toolchain.write_text("raise SystemExit(3)\n")
    assert (ci.run(), len(ci.commands)) == (3, 3)


def test_ci_fails_where_it_cannot_install_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/bash", ROOT / ".ci/install"], env={"PATH": str(tmp_path)}, capture_output=True, timeout=10, check=False
    )
    assert done.returncode == 1
    assert b"tests need Go" in done.stderr


@pytest.mark.parametrize(("value", "ending"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_test_without_its_program_fails_in_ci_and_is_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch, value: str, ending: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", value)
    assert require_program("no-such-program", "python3")
    with pytest.raises(ending, match="no-such-program or nor-this is not installed"):
        require_program("no-such-program", "nor-this")


@pytest.mark.parametrize(
    "script",
    [
        *(".ci/install", ".ci/run", "scripts/check", "scripts/image", "scripts/install", "scripts/release"),
        *("scripts/lint-openapi", "scripts/test", "scripts/test-lowest"),
    ],
)
def test_a_script_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True, timeout=10)
