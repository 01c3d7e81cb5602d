"""The self-test tries every command that deferd uses and no other; errors of the store name the missing permission."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError, ResponseError

import deferd
from deferd.store.preflight import CHANNELS_RULE, KEYS_RULE, UNNAMED, missing_permission, permissions_message

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


VALKEY_9 = "ACL failure in script: "
REDIS_7 = "The user executing the script can't "


@pytest.mark.parametrize(
    ("error", "permission"),
    [
        (NoPermissionError("User me has no permissions to run the 'time' command"), "+time"),
        (NoPermissionError("this user has no permissions to run the 'config|get' command"), "+config|get"),
        (NoPermissionError("this user has no permissions to run the 'eval' command or its subcommand"), "+eval"),
        (NoPermissionError("No permissions to access a key"), KEYS_RULE),
        (NoPermissionError("this user has no permissions to access one of the keys used as arguments"), KEYS_RULE),
        (NoPermissionError("No permissions to access a channel"), CHANNELS_RULE),
        (NoPermissionError("has no permissions to access one of the channels used as arguments"), CHANNELS_RULE),
        (NoPermissionError("an unknown wording"), UNNAMED),
        (ResponseError(f"{VALKEY_9}User me has no permissions to run the 'ZADD' command script: on @u:1."), "+zadd"),
        (ResponseError(f"{VALKEY_9}No permissions to access a key script: on @user_script:1."), KEYS_RULE),
        (ResponseError(f"{VALKEY_9}No permissions to access a channel script: on @user_script:1."), CHANNELS_RULE),
        (ResponseError(f"{REDIS_7}run this command or subcommand script: eddb, on @user_script:1."), UNNAMED),
        (ResponseError(f"{REDIS_7}access at least one of the keys mentioned in the command arguments"), KEYS_RULE),
        (ResponseError(f"{REDIS_7}publish to the channel mentioned in the command script: d69f"), CHANNELS_RULE),
        (ResponseError("unknown command 'WAIT'"), None),
        (ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), None),
        (ConnectionError("refused"), None),
    ],
)  # fmt: skip
def test_the_missing_permission_of_an_error(error: Exception, permission: str | None) -> None:
    assert missing_permission(error) == permission


def test_the_message_says_how_to_grant_what_is_missing() -> None:
    assert permissions_message(["+zadd", "+time", "", "+time"]).endswith(
        "grant them with: ACL SETUSER <user> +time +zadd"
    )
    assert "ACL LOG" in permissions_message([UNNAMED])
