"""A client of the Redis protocol with the methods of AsyncClient that the clients of a fault run use.

Like those it never retries on its own, and it raises the same errors, so that one history has the calls of both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import redis
from msgspec import convert
from redis.asyncio import BlockingConnectionPool

from deferd import Delivery, Job, JobRef
from deferd.client.errors import NoAnswer, UnexpectedAnswer, Unreachable
from deferd.contract.errors import (
    DeferdError,
    JobCancelled,
    JobExists,
    JobNotFound,
    JobReserved,
    ReceiptStale,
    StoreUnavailable,
)
from deferd.contract.operations.jobs import Cancelled, Released
from deferd.contract.timestamps import parse_instant
from tests.faults.history import NOT_SHOWN
from tests.faults.response_facts import ms

OneJob = TypeVar("OneJob", bound=Job)
CONNECTIONS = 30
_ERRORS: dict[str, Callable[[str, str, str], DeferdError]] = {
    "JOB_EXISTS": lambda topic, job, _: JobExists(topic, job, NOT_SHOWN),
    "JOB_RESERVED": lambda topic, job, _: JobReserved(topic, job),
    "JOB_NOT_FOUND": lambda topic, job, _: JobNotFound(topic, job),
    "RECEIPT_STALE": lambda topic, job, _: ReceiptStale(topic, job),
    "JOB_CANCELLED": lambda topic, job, _: JobCancelled(topic, job),
    "STORE_UNAVAILABLE": lambda _, __, text: StoreUnavailable(text),
}
_DURATIONS = {
    "ttr": "TTR",
    "delay": "DELAY",
    "ttl": "TTL",
    "retain": "RETAIN",
    "dead_retain": "DEADRETAIN",
    "time_limit": "TIMELIMIT",
    "deadline": "DEADLINE",
    "spread": "SPREAD",
    "max_wait": "MAXWAIT",
    "unique_for": "UNIQUEFOR",
}
_OBJECTS = {"backoff": "BACKOFF", "on_end": "ONEND"}
_WORDS = {
    "max_attempts": "MAXATTEMPTS",
    "max_items": "MAXITEMS",
    "on_conflict": "ONCONFLICT",
    "conflict_with": "CONFLICTWITH",
    "if_reserved": "IFRESERVED",
    "group": "GROUP",
    "priority": "PRIORITY",
}


class RespClient:
    """Talks to `redis://HOST:PORT`, or with the key of the environment to `redis://key@HOST:PORT`."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        address = urlsplit(url)
        self._pool = BlockingConnectionPool(
            max_connections=CONNECTIONS,
            timeout=timeout_s,
            host=address.hostname,
            port=address.port,
            password=os.environ["DEFERD_KEY"] if address.username else None,
            protocol=3,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.disconnect()

    async def _execute(self, *words: str | int) -> Any:
        """The reply to a command whose second word is a topic and whose third is a job, if it is about one.

        Raises:
            Unreachable, NoAnswer, UnexpectedAnswer, and the errors of the service.
        """
        try:
            connection = await self._pool.get_connection()
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise Unreachable(str(error)) from error
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        except redis.ResponseError as error:
            code, _, text = str(error).partition(" ")
            if code not in _ERRORS:
                raise UnexpectedAnswer(500, str(error)) from error
            raise _ERRORS[code](str(words[1]), str(words[2]), text) from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            await connection.disconnect()
            raise NoAnswer(str(error)) from error
        except BaseException:  # cancelled: its reply is still to come
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._pool.release(connection)

    # Topics as sets

    async def sadd(self, topic: str, delays_ms: Mapping[str, int]) -> int:
        """Put these bodies; returns how many were put."""
        count: int = await self._execute("SADD", topic, *(word for pair in delays_ms.items() for word in pair))
        return count

    async def spop(self, topic: str, count: int) -> list[str]:
        """Take and finish up to `count` jobs: their bodies."""
        bodies: list[str] = await self._execute("SPOP", topic, count)
        return bodies

    # The full life of a job

    async def put(self, topic: str, body: str, *, id: str, **terms: Any) -> Job:
        """Put a job."""
        words: list[str | int] = []
        for name, value in terms.items():
            if name in _DURATIONS:
                words += [_DURATIONS[name], round(value * 1000)]
            elif name == "run_at":
                words += ["AT", ms(value)]
            elif name in _OBJECTS:
                words += [_OBJECTS[name], json.dumps(value)]
            elif name == "tags":
                words += [word for tag in value for word in ("TAG", tag)]
            else:
                words += [_WORDS[name], value]
        return _job(await self._execute("DEFERD.PUT", topic, id, json.dumps(body), "JSON", *words), Job)

    async def pop(
        self, topics: str | Sequence[str], *, count: int, wait: float, request_id: str, consumer: str
    ) -> list[Delivery]:
        """Pop jobs of a topic, or of those that match the patterns."""
        named = [topics] if isinstance(topics, str) else topics
        options = ("COUNT", count, "WAIT", round(wait * 1000), "REQUESTID", request_id, "CONSUMER", consumer, "JSON")
        return [_job(fields, Delivery) for fields in await self._execute("DEFERD.POP", *named, *options)]

    async def finish(self, job: Delivery | JobRef, result: str) -> None:
        """Finish a delivery."""
        await self._execute("DEFERD.FINISH", *_held(job), "RESULT", result)

    async def release(
        self, job: Delivery, *, delay: float | None = None, error: str = "", count: bool = True
    ) -> Released:
        """Release or snooze a delivery."""
        words: list[str | int] = [] if delay is None else ["DELAY", round(delay * 1000)]
        words += ["ERROR", error] if error else []
        fields = await self._execute("DEFERD.RELEASE", *_held(job), *words, *(() if count else ("SNOOZE",)))
        return convert(fields, Released)

    async def touch(self, job: Delivery) -> datetime:
        """Extend a lease; returns its new end."""
        return parse_instant((await self._execute("DEFERD.TOUCH", *_held(job)))["reserved_until"])

    async def bury(self, job: Delivery) -> None:
        """Bury a delivery."""
        await self._execute("DEFERD.BURY", *_held(job))

    async def cancel(self, topic: str, job: str, *, follow_up: Literal["cancel", "keep"]) -> Cancelled:
        """Cancel a job."""
        return convert(await self._execute("DEFERD.CANCEL", topic, job, "FOLLOWUP", follow_up), Cancelled)

    async def change(self, topic: str, job: str, *, delay: float, **flow: Any) -> Job:
        """Reschedule a job; `flow` is its new group or priority."""
        words = [word for name, value in flow.items() for word in (_WORDS[name], value)]
        return _job(await self._execute("DEFERD.CHANGE", topic, job, "DELAY", round(delay * 1000), *words, "JSON"), Job)

    async def get(self, topic: str, job: str) -> Job:
        """Get a job."""
        return _job(await self._execute("DEFERD.GET", topic, job, "JSON"), Job)


def _held(job: Delivery | JobRef) -> tuple[str, str, str]:
    return job.topic, job.id, job.receipt or "*"


def _job(fields: dict[str, Any], struct: type[OneJob]) -> OneJob:
    """A job, whose body and result are JSON text."""
    values = {name: json.loads(fields[name]) for name in ("body", "result") if fields.get(name) is not None}
    return convert(fields | values, struct)
