"""The self-test of a store tries every command that deferd uses there, and no other."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import deferd

SOURCES = Path(deferd.__file__).parent
SCRIPTS = SOURCES / "engine" / "lua"
SELF_TEST = (files("deferd.store") / "lua" / "self_test.lua").read_text()
SENT_BY_THE_SELF_TEST_ITSELF = {"PING"}
_COMMENT = re.compile(r"--.*")


def commands_of_scripts() -> set[str]:
    """The command of each redis.call (or `call`, as some name it) and redis.pcall, or of an expression all commands."""
    commands = set()
    for script in SCRIPTS.rglob("*.lua"):
        text = _COMMENT.sub("", script.read_text())
        if script.name == "write.lua":  # commands_outside_scripts finds what this runs
            continue
        for chosen in re.findall(r"\b(?:redis\.p?)?call\(([^,)]*)", text):
            named = re.findall(r"'([A-Z]+)'", chosen)
            assert named, f"{script.name}: the command of call({chosen} cannot be read"
            commands.update(named)
    return commands


def commands_outside_scripts() -> set[str]:
    """The commands that the engine and the shard guard name for themselves."""
    commands = set()
    for source in [*(SOURCES / "engine").glob("*.py"), SOURCES / "store" / "shard_guard.py"]:
        commands.update(re.findall(r"""\b(?:command|write|call)\(\s*"([A-Z]+)\"""", source.read_text()))
    return commands - {"EVAL", "FUNCTION"}


def test_the_self_test_tries_each_command_that_is_used_and_no_other() -> None:
    tried = set(re.findall(r"\btry\('([A-Z]+)'", _COMMENT.sub("", SELF_TEST))) | SENT_BY_THE_SELF_TEST_ITSELF
    used = commands_of_scripts() | commands_outside_scripts()
    assert len(used) > 30
    assert used - tried == set(), "add these to store/lua/self_test.lua"
    assert tried - used == set(), "remove these from store/lua/self_test.lua: nothing uses them"


def test_the_self_test_covers_each_lua_library_that_scripts_use() -> None:
    libraries = {"cjson", "struct", "cmsgpack", "bit"}
    used = {name for script in SCRIPTS.rglob("*.lua") for name in libraries if f"{name}." in script.read_text()}
    assert used == {name for name in libraries if f"{name}." in SELF_TEST}
