"""The calls of scripts as a store measures them: all together, and the longest.

A store logs the commands within a script as well. Commands of less than `_LOGGED_US` are left out: thousands of them
would displace the calls of scripts, of which all but the last would be missing.
"""

from __future__ import annotations

from typing import NamedTuple

import redis

_LOGGED_US = 200
_LOGGED_MOST = 100_000


class ScriptCalls(NamedTuple):
    """How many calls there were, and the ms that the store spent in all of them and in the longest, at least 0.2."""

    calls: int
    all_ms: float
    longest_ms: float


def log_calls(client: redis.Redis) -> None:
    """Let the store keep the calls that `script_calls` reads."""
    client.config_set("slowlog-log-slower-than", _LOGGED_US)
    client.config_set("slowlog-max-len", _LOGGED_MOST)


def forget_calls(client: redis.Redis) -> None:
    """Begin to measure."""
    client.config_resetstat()
    client.slowlog_reset()


def script_calls(client: redis.Redis) -> ScriptCalls:
    """What was called since `forget_calls`."""
    stats = client.info("commandstats").get("cmdstat_fcall", {"calls": 0, "usec": 0})
    logged = client.slowlog_get(_LOGGED_MOST)
    longest_us = max((one["duration"] for one in logged if one["command"].startswith(b"FCALL")), default=_LOGGED_US)
    return ScriptCalls(stats["calls"], stats["usec"] / 1000, longest_us / 1000)
