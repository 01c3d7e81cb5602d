"""A release: what `scripts/release` refuses and builds, and the version in the image and wherever its tag is shown."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.previous_release import needs_history

ROOT = Path(__file__).resolve().parents[3]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
NEXT = "9.8.7"


@dataclass(frozen=True)
class Repository:
    """A repository of its own, in which releases are made."""

    folder: Path

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
        command = ["git", *identity, *arguments]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        self.write(name, text.replace(old, new))

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--no-verify", "--message", "Change it")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["scripts/release", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1100,
            check=False,
        )

    def refusal(self, *arguments: str) -> str:
        """Why it makes no release: its one line, and nothing was built."""
        ran = self.release(*arguments)
        assert (ran.returncode, ran.stdout) == (1, ""), ran.stdout + ran.stderr
        assert not (self.folder / "dist").exists()
        return ran.stderr.removeprefix("scripts/release: ").removesuffix("\n")


@pytest.fixture
def small(tmp_path: Path) -> Repository:
    """What the refusals read, ready to be released as `NEXT`."""
    repository = Repository(tmp_path)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/release", tmp_path / "scripts")
    repository.write("pyproject.toml", f'[project]\nname = "deferd"\nversion = "{NEXT}"\n')
    repository.write("CHANGELOG.md", f"# Changelog\n\n## [Unreleased]\n\n## [{NEXT}] - 2026-12-01\n\n- A change.\n")
    repository.git("init", "--quiet")
    repository.commit()
    return repository


@pytest.fixture
def whole(tmp_path: Path) -> Repository:
    """All files of this repository, with what is not committed yet, and in it the commit of a release as `NEXT`."""
    repository = Repository(tmp_path / "repository")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            copy = repository.folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    repository.replace("pyproject.toml", f'version = "{VERSION}"', f'version = "{NEXT}"')
    repository.replace("CHANGELOG.md", "## [Unreleased]\n", f"## [Unreleased]\n\n## [{NEXT}] - 2026-12-01\n")
    repository.git("init", "--quiet")
    repository.commit()
    return repository


@pytest.mark.parametrize("name", ["pyproject.toml", "notes.txt"])
def test_a_tree_with_changes_is_not_released(small: Repository, name: str) -> None:
    with (small.folder / name).open("a") as file:
        file.write("\n")

    assert small.refusal().startswith("the tree has changes")
    assert small.refusal("--check").startswith("the tree has changes")


@pytest.mark.parametrize(
    "changelog",
    [
        "## [Unreleased]\n\n## [9.8.6] - 2026-12-01\n",
        f"## [Unreleased]\n\n### Added\n\n- A change.\n\n## [{NEXT}] - 2026-12-01\n",
        f"## [Unreleased]\n\n## [{NEXT}]\n",
        "## [Unreleased]\n",
        f"## [{NEXT}] - 2026-12-01\n",
    ],
    ids=["of another version", "changes outside it", "without a date", "missing", "no place for what follows"],
)
def test_a_version_needs_its_section_of_the_changelog(small: Repository, changelog: str) -> None:
    small.write("CHANGELOG.md", f"# Changelog\n\n{changelog}")
    small.commit()

    assert small.refusal() == f"CHANGELOG.md must go on with '## [{NEXT}] - <date>' after an empty '## [Unreleased]'"


def test_a_long_changelog_gets_the_same_line_as_a_short_one(small: Repository) -> None:
    """The rest of it fills a pipe, whose writer fails when nobody reads on."""
    small.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n" + "- A change.\n" * 20_000)
    small.commit()

    assert small.refusal().startswith("CHANGELOG.md must go on with")


def test_a_version_is_released_once(small: Repository) -> None:
    small.git("tag", f"v{NEXT}")

    assert small.refusal() == f"the tag v{NEXT} exists: raise the version"


def test_an_unknown_argument_is_not_taken_for_a_release(small: Repository) -> None:
    assert small.refusal("--dry-run") == "unknown argument --dry-run: it takes --check or nothing"


@needs_history
@pytest.mark.slow(seconds=120)
@pytest.mark.timeout(1200)  # it downloads what the service consists of
def test_a_release_has_a_wheel_that_works_an_sdist_a_list_of_parts_and_checksums(whole: Repository) -> None:
    ran = whole.release()

    assert ran.returncode == 0, ran.stdout + ran.stderr
    dist = whole.folder / "dist"
    files = {path.name: path for path in dist.iterdir()}
    wheel, sdist = f"deferd-{NEXT}-py3-none-any.whl", f"deferd-{NEXT}.tar.gz"
    bom = f"deferd-{NEXT}.cdx.json"
    assert files.keys() == {wheel, sdist, bom, "SHA256SUMS"}
    assert set((dist / "SHA256SUMS").read_text().splitlines()) == {
        f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}" for name in (wheel, sdist, bom)
    }

    with zipfile.ZipFile(files[wheel]) as archive:
        held = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"deferd-{NEXT}.dist-info/METADATA").decode())
    assert held >= {
        "deferd/py.typed",
        "deferd/engine/lua/pop.lua",
        "deferd/console/templates/base.html",
        "deferd/console/static/console.js",
        "deferd/console/static/vendor/htmx.LICENSE",
        "deferd/console/static/vendor/uPlot.LICENSE",
        f"deferd-{NEXT}.dist-info/licenses/LICENSE",
        f"deferd-{NEXT}.dist-info/entry_points.txt",
    }
    assert {name.split("/")[0] for name in held} == {"deferd", f"deferd-{NEXT}.dist-info"}
    assert not [name for name in held if re.search(r"(^|/)(test_|tests/|conftest|__pycache__/)", name)]
    assert (metadata["Version"], metadata["Requires-Python"]) == (NEXT, ">=3.11")
    with tarfile.open(files[sdist]) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert inside >= {"LICENSE", "CHANGELOG.md", "requirements.lock", "tests/conftest.py", "app/deferd/py.typed"}

    parts = json.loads(files[bom].read_text())
    assert (parts["bomFormat"], parts["metadata"]["component"]["name"]) == ("CycloneDX", "deferd")
    assert parts["metadata"]["component"]["version"] == NEXT
    versions = {canonicalize_name(part["name"]): part["version"] for part in parts["components"]}
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert versions.items() <= locked.items()
    assert versions.keys() >= {"fastapi", "msgspec", "pydantic-core", "redis", "uvicorn"}
    assert str(whole.folder.parent) not in files[bom].read_text()

    assert f"pip install {wheel}[server]: " in ran.stdout
    assert f'git tag --annotate --message "deferd {NEXT}" v{NEXT} {whole.git("rev-parse", "HEAD")}' in ran.stdout
    assert whole.git("tag") == ""
    assert whole.git("status", "--porcelain") == ""


def test_the_image_has_the_version_and_the_commit_as_its_labels(tmp_path: Path, small: Repository) -> None:
    shutil.copy(ROOT / "scripts/image", small.folder / "scripts")
    small.commit()
    docker = tmp_path / "programs/docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    ran = subprocess.run(
        ["scripts/image", "--tag", "deferd"],
        cwd=small.folder,
        env={"PATH": f"{docker.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    passed = dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert ran.stdout.split()[:2] == ["buildx", "build"]
    assert ran.stdout.split()[-3:] == ["--tag", "deferd", "."]
    assert (passed["VERSION"], passed["REVISION"]) == (NEXT, small.git("rev-parse", "HEAD"))
    for argument in ("VERSION", "REVISION"):
        assert f"ARG {argument}=unknown\n" in dockerfile
        assert f'org.opencontainers.image.{argument.lower()}="${argument}"' in dockerfile


def test_what_shows_a_tag_of_the_image_shows_this_version() -> None:
    files = [ROOT / "README.md", *ROOT.glob("*.yml"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.y*ml")]
    image = re.compile(r"(?<!/)/deferd:([\w.-]+)")
    tags = {(path.name, tag) for path in files for tag in image.findall(path.read_text(encoding="utf-8"))}

    assert tags, "docs/deployment.md shows a manifest"
    assert {tag for _, tag in tags} == {VERSION}, tags
