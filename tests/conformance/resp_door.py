"""The Redis protocol: the DEFERD commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx
import redis

from tests.conformance.door import Job, Refused
from tests.conformance.http_door import HttpDoor

_TEXTS = ("group", "on_conflict", "conflict_with", "if_reserved", "durability", "traceparent", "batch")
_COUNTS = ("max_attempts", "max_items", "priority")


class RespDoor(HttpDoor):
    """Commands of the Redis protocol. What it has no command for is done through HTTP."""

    no_group = ""

    def __init__(self, http: httpx.Client, client: redis.Redis) -> None:
        super().__init__(http)
        self._redis = client

    def _command(self, verb: str, *words: Any) -> Any:
        try:
            return _plain(self._redis.execute_command(f"DEFERD.{verb}", *words))
        except redis.ResponseError as error:
            code, _, detail = str(error).partition(" ")
            raise Refused(code.lower(), detail) from error

    def _job_reply(self, verb: str, *words: Any) -> Job:
        return _read(self._command(verb, *words))

    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        words = (topic or self.topic, "*" if job_id is None else job_id, json.dumps(body), "JSON")
        return self._job_reply("PUT", *words, *_options(fields))

    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        options = _options({"count": count, "wait": wait, **query}, counts=("count",), texts=("consumer", "request_id"))
        return [*map(_read, self._command("POP", *(topics or [self.topic]), *options, "JSON"))]

    def get(self, job_id: str = "a") -> Job:
        return self._job_reply("GET", self.topic, job_id, "JSON")

    def wait(self, job_id: str = "a", *, seconds: float = 60, until: str = "end", after: float | None = None) -> Job:
        since = () if after is None else ("AFTER", round(after * 1000))
        words = (self.topic, job_id, "WAIT", round(seconds * 1000), "UNTIL", until, *since, "JSON")
        return self._job_reply("GET", *words)

    def change(self, job_id: str, **fields: Any) -> Job:
        words: list[Any] = [self.topic, job_id, "JSON"]
        if "body" in fields:
            words += ["BODY", json.dumps(fields.pop("body"))]
        return self._job_reply("CHANGE", *words, *_options(fields))

    def cancel(self, job_id: str, *, if_reserved: str = "cancel", follow_up: str = "cancel") -> str:
        was: str = self._command("CANCEL", self.topic, job_id, "IFRESERVED", if_reserved, "FOLLOWUP", follow_up)["was"]
        return was

    def finish(
        self, job_id: str, receipt: str | None = None, *, result: Any = None, put: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        words: list[Any] = ["JSON"]
        if result is not None:
            words += ["RESULT", json.dumps(result)]
        if put:
            words += ["PUT", json.dumps(self._of_topic(put))]
        self._command("FINISH", self.topic, job_id, receipt or "*", *words)

    def release(self, job_id: str, receipt: str | None = None, **fields: Any) -> Job:
        snooze = [] if fields.pop("count", True) else ["SNOOZE"]
        options = _options(fields, texts=("error",))
        return self._job_reply("RELEASE", self.topic, job_id, receipt or "*", *options, *snooze)

    def touch(
        self, job_id: str, receipt: str | None = None, *, ttr: float | None = None, progress: Any = None
    ) -> float:
        options: list[Any] = [] if ttr is None else ["TTR", round(ttr * 1000)]
        options += [] if progress is None else ["PROGRESS", json.dumps(progress)]
        reply = self._command("TOUCH", self.topic, job_id, receipt or "*", *options)
        return datetime.fromisoformat(reply["reserved_until"]).timestamp()

    def bury(self, job_id: str, receipt: str | None = None, *, error: str | None = None) -> None:
        options = () if error is None else ("ERROR", error)
        self._command("BURY", self.topic, job_id, receipt or "*", *options)


def _options(fields: Mapping[str, Any], counts: Sequence[str] = _COUNTS, texts: Sequence[str] = _TEXTS) -> list[Any]:
    """Fields of HTTP as words: durations in whole milliseconds."""
    words: list[Any] = []
    for name, value in fields.items():
        word = name.replace("_", "").upper()
        if name == "run_at":
            words += ["AT", round(datetime.fromisoformat(value).timestamp() * 1000)]
        elif name == "tags":
            words += [part for tag in value for part in ("TAG", tag)]
        elif name == "headers":
            words += [part for pair in value.items() for part in ("HEADER", *pair)]
        elif name in counts or name in texts:
            words += [word, value]
        elif isinstance(value, int | float):
            words += [word, round(value * 1000)]
        else:
            words += [word, json.dumps(value)]
    return words


def _plain(reply: Any) -> Any:
    """A reply with text in place of bytes."""
    match reply:
        case bytes():
            return reply.decode()
        case dict():
            return {_plain(name): _plain(value) for name, value in reply.items()}
        case list():
            return [_plain(item) for item in reply]
    return reply


def _read(reply: Mapping[str, Any]) -> Job:
    """A job whose body and result are JSON."""
    fields = {name: json.loads(value) if name in {"body", "result"} else value for name, value in reply.items()}
    if "followed_by" in fields:
        fields["followed_by"] = _read(fields["followed_by"])
    return Job.of(fields)
