"""When the keys file is reloaded, and the errors of an invalid one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deferd.api.auth.api_keys import KeysRefused, hash_of
from deferd.api.auth.key_source import FILE_MAX_BYTES, KeySource

YEAR_NS = 365 * 86_400 * 10**9


def keys_text(*names: str) -> str:
    return "".join(f'[[key]]\nname = "{name}"\nhash = "{hash_of(name)}"\nscopes = ["put"]\n' for name in names)


def write(file: Path, text: str, *, years_ago: int = 0) -> None:
    file.write_text(text, encoding="utf-8")
    if years_ago:
        at = file.stat().st_mtime_ns - years_ago * YEAR_NS
        os.utime(file, ns=(at, at))


def changed(source: KeySource) -> list[str] | None:
    keys = source.read_if_changed()
    return None if keys is None else [key.name for key in keys]


def refusal(source: KeySource) -> str:
    with pytest.raises(KeysRefused) as caught:
        source.read_if_changed()
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    write(file, keys_text("a"), years_ago=3)
    return file


@pytest.fixture
def source(file: Path) -> KeySource:
    source = KeySource(file, None)
    assert [key.name for key in source.read()] == ["a"]
    return source


def test_an_unchanged_file_is_not_reloaded(source: KeySource) -> None:
    assert [changed(source) for _ in range(3)] == [None, None, None]


def test_a_change_is_reported_once(source: KeySource, file: Path) -> None:
    write(file, keys_text("a", "b"))
    assert [changed(source) for _ in range(3)] == [["a", "b"], None, None]


def test_a_recent_change_of_the_same_size_and_time_is_noticed(source: KeySource, file: Path) -> None:
    write(file, keys_text("b"))
    assert changed(source) == ["b"]
    at = file.stat().st_mtime_ns
    write(file, keys_text("c"))
    os.utime(file, ns=(at, at))
    assert changed(source) == ["c"]


def test_a_replaced_file_is_noticed(source: KeySource, file: Path) -> None:
    """Editors and mounted secrets replace files."""
    new = file.with_name("new")
    write(new, keys_text("b"), years_ago=2)
    new.replace(file)
    assert changed(source) == ["b"]


def test_a_touched_file_has_not_changed(source: KeySource, file: Path) -> None:
    write(file, keys_text("a"))
    assert changed(source) is None


@pytest.mark.parametrize("broken", ["[[key", "", keys_text("a", "a")])
def test_an_invalid_file_is_reported_once_and_so_is_its_correction(source: KeySource, file: Path, broken: str) -> None:
    write(file, broken, years_ago=1)
    assert f"--keys-file (DEFERD_KEYS_FILE) {file} is " in refusal(source)
    assert changed(source) is None
    write(file, keys_text("a"))
    assert [changed(source) for _ in range(2)] == [["a"], None]


def test_another_error_is_reported_again(source: KeySource, file: Path) -> None:
    write(file, "[[key")
    refusal(source)
    file.unlink()
    assert "not readable: No such file" in refusal(source)
    assert changed(source) is None


@pytest.mark.parametrize("content", [b"\xff", b"#" * (FILE_MAX_BYTES + 1)])
def test_invalid_content_is_refused(source: KeySource, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert str(file) in refusal(source)


def test_anything_but_a_regular_file_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(KeysRefused, match="is not a file"):
            KeySource(place, None).read()


def test_keys_in_a_setting_do_not_change() -> None:
    source = KeySource(None, keys_text("a"))
    assert [key.name for key in source.read()] == ["a"]
    assert changed(source) is None


def test_an_error_in_a_setting_names_it_and_shows_no_secret() -> None:
    with pytest.raises(KeysRefused, match=r"^--keys \(DEFERD_KEYS\) is not valid TOML") as caught:
        KeySource(None, "sesame").read()
    assert "sesame" not in str(caught.value)
