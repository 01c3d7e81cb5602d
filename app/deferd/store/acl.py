"""Errors of a store that say that its user lacks a right, and the rule that grants the right.

A right is written as `ACL SETUSER` takes it: ``+zadd``, ``~deferd:*`` for keys, ``&deferd:*`` for channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from redis.exceptions import NoPermissionError, ResponseError

KEYS_RULE = "~deferd:*"
CHANNELS_RULE = "&deferd:*"
UNNAMED = ""
"""A command may not be run, and the server does not say which: Redis 6.2 and 7.0, in a script."""

_COMMAND = re.compile(r"no permissions to run the '([^']+)' command", re.IGNORECASE)
_UNNAMED_COMMAND = "can't run this command"
_KEY = re.compile(r"(permissions? to access (a key|one of the keys)|can't access at least one of the keys)")
_CHANNEL = re.compile(r"(permissions? to access (a channel|one of the channels)|can't publish to the channel)")


def missing_right(error: Exception) -> str | None:
    """The right for want of which the store refused, `UNNAMED` if it does not say; None for every other error.

    An error inside a script has no code of its own, so its text decides.
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


def lacking(rights: Iterable[str]) -> str:
    """The sentence that names missing rights and how to grant them."""
    named = " ".join(sorted({right for right in rights if right}))
    if not named:
        return "the store's user lacks a right (ACL LOG of the store says which)"
    return f"the store's user lacks the rights {named}; grant them with: ACL SETUSER <user> {named}"
