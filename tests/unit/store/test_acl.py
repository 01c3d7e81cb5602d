"""The missing permission in an error, in the wording of each server version."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from deferd.store.acl import CHANNELS_RULE, KEYS_RULE, UNNAMED, missing_permission, permissions_message

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
