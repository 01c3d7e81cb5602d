"""The library of scripts: what it consists of, in which order, and that nothing of a call is left for the next one."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from deferd.engine.script_library import NAME_PREFIX, build

LUA = Path(str(files("deferd.engine"))) / "lua"
STATE = re.compile(r"^local (\w+(?:, \w+)*)(?:$| +--)", re.MULTILINE)
"""Names outside functions without a value: what is known of a call."""
WITH_VALUE = re.compile(r"^local ((?:\w+, )*\w+) = ", re.MULTILINE)
SET = re.compile(r"^ *((?:\w+, +)*\w+) = ", re.MULTILINE)
HOISTED = [path.name for path in LUA.glob("*.lua") if "\n-- @call\n" in path.read_text()]


def names_in(pattern: re.Pattern[str], text: str) -> set[str]:
    return {name for names in pattern.findall(text) for name in re.split(r", +", names)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    for name in ("builtins", "calls", "clock", "clock_movable"):
        (tmp_path / "lib" / f"{name}.lua").write_text(f"local {name}\n")
    return tmp_path


def test_files_of_lib_come_once_behind_those_that_they_include_and_before_the_scripts(folder: Path) -> None:
    (folder / "lib" / "a.lua").write_text("-- @include c clock\nlocal a\n")
    (folder / "lib" / "b.lua").write_text("local b\n")
    (folder / "lib" / "c.lua").write_text("local c\n")
    (folder / "one.lua").write_text("-- Does something.\n-- @flags allow-oom no-writes\n\nreturn 1\n")
    (folder / "two.lua").write_text("local f\n\n-- @call\nreturn f\n")
    library = build(folder, movable_clock=False)
    first, release, *rest = library.text.splitlines()
    assert first == f"#!lua name={library.name}"
    assert release == f"local RELEASE = '{library.name.removeprefix(NAME_PREFIX)}'"
    assert rest == [
        "local builtins",
        "local c",
        "local clock",
        "local a",
        "local b",
        "local calls",
        *("do", "register('one', { 'allow-oom', 'no-writes' }, function(KEYS, ARGV)", "return 1", "end)", "end"),
        *("do", "local f", "register('two', {  }, function(KEYS, ARGV)", "return f", "end)", "end"),
    ]


def test_inlined_files_are_part_of_the_script(folder: Path) -> None:
    (folder / "lib" / "inlined.lua").write_text("local inlined = ARGV[1]\n")
    (folder / "one.lua").write_text("-- @inline inlined\nreturn inlined\n")
    text = build(folder, movable_clock=False).text
    assert "function(KEYS, ARGV)\nlocal inlined = ARGV[1]\nreturn inlined\nend)" in text


def test_another_text_has_another_name_and_other_functions(folder: Path) -> None:
    (folder / "one.lua").write_text("return 1\n")
    libraries = [build(folder, movable_clock=movable) for movable in (False, True)]
    (folder / "one.lua").write_text("return 2\n")
    libraries.append(build(folder, movable_clock=False))
    assert len({library.name for library in libraries}) == len({library.functions["one"] for library in libraries}) == 3
    assert "local clock_movable" in libraries[1].text
    for library in libraries:
        release = library.name.removeprefix(NAME_PREFIX)
        assert re.fullmatch("[0-9a-f]{12}", release)
        assert library.functions == {"one": f"one_{release}"}


@pytest.mark.parametrize("name", HOISTED)
def test_a_script_sets_all_that_its_functions_know_of_a_call(name: str) -> None:
    before, _, body = (LUA / name).read_text().partition("\n-- @call\n")
    state = names_in(STATE, before)
    assert len(state) > 5
    assert state <= names_in(SET, body)
    others = names_in(WITH_VALUE, before)
    assert [] == [name for name in others if not name.isupper()], "it may not keep anything but constants"


def test_each_call_sets_all_that_the_files_of_lib_know_of_it() -> None:
    scripts = "\n".join(path.read_text() for path in LUA.glob("*.lua"))
    of_scripts = set(" ".join(re.findall(r"^-- @inline (.*)$", scripts, re.MULTILINE)).split())
    shared = [path for path in (LUA / "lib").glob("*.lua") if path.stem not in {*of_scripts, "builtins"}]
    state = set().union(*(names_in(STATE, path.read_text()) for path in shared))
    assert {"KEYS", "ARGV", "TOPIC", "POOL", "TAKEN", "made_attached", "called_at_ms"} <= state
    assert state <= names_in(SET, (LUA / "lib" / "calls.lua").read_text().replace(",\n", ", "))
    for path in shared:
        assert [] == [
            name for name in names_in(WITH_VALUE, path.read_text()) if not re.fullmatch("[A-Z_]+|scripts", name)
        ]


def test_every_script_says_what_a_store_without_memory_does_with_it() -> None:
    """Those without a flag are refused there: they store jobs, or whatever their caller names."""
    flags = {path.stem: re.findall(r"^-- @flags (.*)$", path.read_text(), re.MULTILINE) for path in LUA.glob("*.lua")}
    assert {verb for verb, found in flags.items() if not found} == {
        "put", "put_where_held", "finish_and_put", "schedule_apply", "write", "batch_set"
    }  # fmt: skip
    assert {flag for found in flags.values() for flag in found} == {"allow-oom", "no-writes"}
