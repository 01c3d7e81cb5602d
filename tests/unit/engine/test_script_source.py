"""Assembling scripts: what is included, what is written in place of names, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferd.engine.script_source import assemble

CHECK = "check()"
"""Stands for what every script begins with."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "not_after.lua").write_text(f"-- Comes first.\n{CHECK}\n")
    return tmp_path


def assembled(folder: Path, source: str, **libraries: str) -> str:
    """The assembled script, with these files in `lib`."""
    for name, text in libraries.items():
        (folder / "lib" / f"{name}.lua").write_text(text)
    check, _, script = assemble(source, folder, movable_clock=False).partition("\n")
    assert check == CHECK
    return script


def test_includes_come_first_in_their_order(folder: Path) -> None:
    script = "-- Does something.\n-- @include one two\nreturn first() + second()\n"
    one, two = "local function first() return 1 end\n", "local function second() return 2 end\n"
    assert assembled(folder, script, one=one, two=two) == (
        "local function first() return 1 end\nlocal function second() return 2 end\nreturn first() + second()"
    )


def test_the_movable_clock_takes_the_place_of_the_clock(folder: Path) -> None:
    for name in ("clock", "clock_movable"):
        (folder / "lib" / f"{name}.lua").write_text(f"local function now() return '{name}' end\n")
    source = "-- @include clock\nreturn now()"
    assert "'clock'" in assemble(source, folder, movable_clock=False)
    assert "'clock_movable'" in assemble(source, folder, movable_clock=True)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("KEYS[1]", "KEYS[1]"),
        ("ARGV[12]", "ARGV[12]"),
        ("60000", "(60000)"),
        ("-1", "(-1)"),
        ("0.5", "(0.5)"),
        ("2 ^ 47", "(2 ^ 47)"),
        ("1024 * 1024", "(1024 * 1024)"),
        ("'a, b'", None),  # such a string is kept as a constant, when it is one of several
        ("'it\\'s'", "'it\\'s'"),
        ('"two words"', '"two words"'),
        ("{ 1, 2 }", None),
        ("struct.unpack", None),
    ],
)
def test_literals_are_written_in_place_of_their_names(folder: Path, value: str, written: str | None) -> None:
    script = assembled(folder, f"local NAME, OTHER = {value}, 7  -- a reason\nreturn f(NAME, OTHER)")
    kept = f"local NAME, OTHER = {value}, 7  -- a reason\nreturn f(NAME, OTHER)".replace("  -- a reason", "  ")
    assert script == (kept if written is None else f"return f({written}, (7))")


@pytest.mark.parametrize(
    "line",
    [
        "return 'NAME'",
        'return "NAME"',
        "return 'it\\'s NAME'",
        "return here.NAME",
        "return NAMES",
        "return A_NAME",
    ],
)
def test_only_whole_names_outside_strings_are_replaced(folder: Path, line: str) -> None:
    assert assembled(folder, f"local NAME = 5\n{line}") == line


def test_comments_and_empty_lines_are_left_out(folder: Path) -> None:
    assert assembled(folder, "-- NAME\n\nreturn 1  -- '\n") == "return 1  "


def test_what_nothing_refers_to_is_left_out(folder: Path) -> None:
    source = """
local TABLE = { a = 1 }
local LONG_TABLE = {
  a = 1,
}
local USED_TABLE = {
  a = 2,
}
local function unused() return used_by_unused(TABLE, LONG_TABLE) end
local function used_by_unused()
  local function inner() return 1 end
  return inner
end
local function used()
  return USED_TABLE.a
end
local counter = 0
return used() + counter
"""
    assert assembled(folder, source) == (
        "local USED_TABLE = {\n  a = 2,\n}\nlocal function used()\n  return USED_TABLE.a\nend\n"
        "local counter = 0\nreturn used() + counter"
    )


@pytest.mark.parametrize(
    "source",
    [
        "local NAME = 1\nlocal NAME = 2\nreturn NAME",
        "local NAME = 1\nlocal NAME = { 2 }\nreturn NAME",
        "local NAME = 1\nlocal function f()\n  local NAME = 2\n  return NAME\nend\nreturn f()",
        "local NAME = 1\nlocal function f()\n  local OTHER, NAME = 2, 3\n  return NAME\nend\nreturn f()",
    ],
)
def test_a_constant_with_two_meanings_is_an_error(folder: Path, source: str) -> None:
    with pytest.raises(ValueError, match="the constant NAME has"):
        assembled(folder, source)


def test_the_same_constant_in_two_files_is_one(folder: Path) -> None:
    script = "-- @include one\nlocal NAME = 1\nreturn NAME + f()"
    assert assembled(folder, script, one="local NAME = 1\nlocal function f() return NAME end\n") == (
        "local function f() return (1) end\nreturn (1) + f()"
    )


def test_rare_functions_and_what_only_they_use_are_made_when_one_is_needed(folder: Path) -> None:
    library = """
local LIMITS = {
  most = 5,
}
local function often() return 1 end
local function only_for_rare() return often() + LIMITS.most end
-- @rare
local function seldom() return only_for_rare() end
-- @rare
local function never() return only_for_rare() end
-- @rare
local function by_the_way() return seldom() end
"""
    source = (
        "-- @include library\nlocal x = often()\nif x == 2 then return { seldom(), by_the_way, x.seldom } end\nreturn x"
    )
    assert assembled(folder, source, library=library).splitlines() == [
        "local made_functions, rare_functions",
        "local function often() return 1 end",
        "function rare_functions()",
        "if made_functions then return made_functions end",
        "local LIMITS = {",
        "  most = 5,",
        "}",
        "local function only_for_rare() return often() + LIMITS.most end",
        "local function seldom() return only_for_rare() end",
        "local function by_the_way() return seldom() end",
        "made_functions = {by_the_way = by_the_way, seldom = seldom}",
        "return made_functions",
        "end",
        "local x = often()",
        "if x == 2 then return { rare_functions().seldom(), rare_functions().by_the_way, x.seldom } end",
        "return x",
    ]


def test_functions_before_and_after_rare_ones_can_call_them(folder: Path) -> None:
    library = """
-- @rare
local function first() return 1 end
local function between() return first() end
-- @rare
local function second() return between() + first() end
local function after() return second() end
"""
    script = assembled(folder, "-- @include library\nreturn after()", library=library)
    assert script.splitlines() == [
        "local made_functions, rare_functions",
        "function rare_functions()",
        "if made_functions then return made_functions end",
        "local function first() return 1 end",
        "local function between() return first() end",
        "local function second() return between() + first() end",
        "made_functions = {second = second}",
        "return made_functions",
        "end",
        "local function after() return rare_functions().second() end",
        "return after()",
    ]


def test_an_embedded_script_is_a_function(folder: Path) -> None:
    (folder / "other.lua").write_text("-- @include library\nreturn f(KEYS[1])\n")
    script = "-- @embed other\nlocal KEY = KEYS[2]\nreturn other({ KEY }, ARGV)"
    assert assembled(folder, script, library="local function f(key) return key end\n").splitlines() == [
        "local function other(KEYS, ARGV)",
        "local function f(key) return key end",
        "return f(KEYS[1])",
        "end",
        "return other({ KEYS[2] }, ARGV)",
    ]


@pytest.mark.parametrize("local", ["seldom", "rare_functions", "made_functions"])
def test_a_local_with_the_name_of_a_rare_function_is_an_error(folder: Path, local: str) -> None:
    library = "-- @rare\nlocal function seldom() return 1 end\n"
    with pytest.raises(ValueError, match=f"{local} is the name of a rare function"):
        assembled(folder, f"-- @include library\nlocal {local}, x = 1, 2\nreturn seldom()", library=library)
