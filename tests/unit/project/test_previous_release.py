"""The previous release is taken from this clone, and nothing else takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.previous_release import ReleaseMissing, needs_history, openapi_document_of, require_import_from, unpack


@needs_history
def test_the_previous_release_is_what_python_imports(tmp_path: Path) -> None:
    release = unpack(tmp_path / "release")
    require_import_from(release / "app")
    assert (release / "tests" / "preloaded.py").exists()


def test_a_clone_that_lacks_the_commit_is_told_so() -> None:
    with pytest.raises(ReleaseMissing, match="git fetch --unshallow"):
        openapi_document_of("0" * 40)


def test_the_installed_package_does_not_pass_for_the_release(tmp_path: Path) -> None:
    with pytest.raises(ReleaseMissing, match="Python imports"):
        require_import_from(tmp_path)
