"""Clients of Redis for a service that serves the Redis protocol."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import redis

from tests.acceptance.service_process import ServiceProcess

Version = Literal[2, 3]
CALL_TIMEOUT_S = 30.0
SERVED_ON = re.compile(r"the Redis protocol is served on rediss?://\S+:(\d+)")


def resp_port(service: ServiceProcess) -> int:
    """Where the newest start of the service serves the Redis protocol."""
    return int(SERVED_ON.findall(service.output())[-1])


@contextlib.contextmanager
def redis_client(service: ServiceProcess, version: Version = 3, **options: Any) -> Iterator[redis.Redis]:
    """A blocking redis-py client, which retries nothing, so that each command is sent once."""
    client = redis.Redis(
        host="127.0.0.1",
        port=resp_port(service),
        protocol=version,
        socket_timeout=CALL_TIMEOUT_S,
        retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        **options,
    )
    with client:
        yield client


def fields(reply: Any) -> dict[str, Any]:
    """A map of RESP3, or the flat list of RESP2, with text for names."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value for name, value in pairs}


def packed(*words: bytes) -> bytes:
    """A command as bytes."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
