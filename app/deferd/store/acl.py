"""Permissions that the store's user lacks: find them in an error of the store, and say how to grant them.

A permission is written as an ACL rule for `ACL SETUSER`: ``+zadd``, ``~deferd:*`` for keys, ``&deferd:*`` for channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from redis.exceptions import NoPermissionError, ResponseError

KEYS_RULE = "~deferd:*"
CHANNELS_RULE = "&deferd:*"
UNNAMED = ""
"""A command is not permitted and the server does not name it: Redis 6.2 and 7.0, in a script."""

_COMMAND = re.compile(r"no permissions to run the '([^']+)' command", re.IGNORECASE)
_UNNAMED_COMMAND = "can't run this command"
_KEY = re.compile(r"(permissions? to access (a key|one of the keys)|can't access at least one of the keys)")
_CHANNEL = re.compile(r"(permissions? to access (a channel|one of the channels)|can't publish to the channel)")


def missing_permission(error: Exception) -> str | None:
    """The permission that the error names, `UNNAMED` if it names none, or None for every other kind of error.

    An error inside a script has no error code, so its text decides.
    """
    if not isinstance(error, (NoPermissionError, ResponseError)):
        return None
    text = str(error)
    if command := _COMMAND.search(text):
        return f"+{command[1].lower()}"
    if _KEY.search(text):
        return KEYS_RULE
    if _CHANNEL.search(text):
        return CHANNELS_RULE
    if isinstance(error, NoPermissionError) or _UNNAMED_COMMAND in text:
        return UNNAMED
    return None


def permissions_message(permissions: Iterable[str]) -> str:
    """The sentence that names missing permissions and how to grant them."""
    named = " ".join(sorted({permission for permission in permissions if permission}))
    if not named:
        return "the store's user lacks a permission (ACL LOG of the store shows which)"
    return f"the store's user lacks the permissions {named}; grant them with: ACL SETUSER <user> {named}"
