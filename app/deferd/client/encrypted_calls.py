"""The requests and responses of a client with a cipher: what it puts is encrypted, and what it reads decrypted.

This is done below everything else in the client, where requests are sent, so that all calls do it alike, also those
that are repeated or joined: they compare and return what the program has put.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as with_changes
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from deferd.client.cipher import Cipher
from deferd.client.errors import Undecryptable
from deferd.client.request_body import not_json
from deferd.client.requests import ApiRequest, Result
from deferd.client.sender import Sender, SendOutcome
from deferd.client.transport import Transport
from deferd.contract.encrypted_values import key_of
from deferd.contract.errors import InvalidInput, PayloadTooLarge
from deferd.contract.limits import ERROR_TEXT_MAX
from deferd.contract.operations.inspection import Explanation
from deferd.contract.operations.jobs import Delivery, Job, PutResult, PutResults
from deferd.contract.operations.schedules_and_calendars import Schedule, SchedulePage

_Fields = dict[str, Raw]
Value = TypeVar("Value")
_ENDS = frozenset({"finished", "dead", "cancelled"})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_fields_of = msgspec.json.Decoder(_Fields).decode
_jobs_of = msgspec.json.Decoder(list[_Fields]).decode
_texts_of = msgspec.json.Decoder(dict[str, str] | None).decode


class EncryptingSender(Sender):
    """A sender that encrypts what requests say of jobs, and decrypts what responses do."""

    def __init__(self, transport: Transport, urls: Sequence[str], *, retry_for_s: float, cipher: Cipher) -> None:
        super().__init__(transport, urls, retry_for_s=retry_for_s)
        self._writer = _Writer(cipher)
        self._reader = _Reader(cipher)

    async def try_to_send(
        self, request: ApiRequest[Result], *, retry_for_s: float | None = None, doubtful: bool = False
    ) -> SendOutcome[Result]:
        """See Sender. A request that is retried has the same bytes; one that has no JSON to encrypt is InvalidInput."""
        read, opened = request.read, self._reader.opened
        try:
            body = self._writer.sealed(request)
        except InvalidInput as error:
            return SendOutcome(None, error, doubtful)
        sent = with_changes(request, body=body, read=lambda content: opened(read(content)))
        outcome = await super().try_to_send(sent, retry_for_s=retry_for_s, doubtful=doubtful)
        if isinstance(outcome.error, PayloadTooLarge) and body is not request.body:
            sizes = f"{len(body or b''):,} bytes with its encrypted parts, {len(request.body or b''):,} without"
            outcome.error.args = (f"{outcome.error} (the request has {sizes})",)
        return outcome


class _Writer:
    """Encrypts parts of jobs in the bodies of requests."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def sealed(self, request: ApiRequest[Any]) -> bytes | None:
        """The body of a request with parts of jobs encrypted; the same object if it has none."""
        if not request.body:
            return request.body
        edit: Callable[[_Fields], None]
        match request.method, *map(unquote, request.path.strip("/").split("/")):
            case "POST", "jobs":
                edit = self._seal_put
            case "POST", "jobs", "batch":
                edit = self._seal_puts
            case ("PATCH", "jobs", topic, _) | ("POST", "jobs", topic, _, "release" | "bury"):
                edit = lambda fields: self._seal(fields, topic)  # noqa: E731
            case "POST", "jobs", topic, _, "finish":
                edit = lambda fields: self._seal_finish(fields, topic)  # noqa: E731
            case "POST", "topics", topic, "finish":
                edit = lambda fields: self._each(fields, "jobs", lambda job: self._seal(job, topic))  # noqa: E731
            case ("PUT", "schedules", _) | ("POST", "schedules", "preview"):
                edit = self._seal_schedule
            case _:
                return request.body
        try:
            fields = _fields_of(request.body)
            edit(fields)
            return _encode(fields)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise not_json(error) from error

    def _seal_put(self, fields: _Fields) -> None:
        self._seal_new(fields, _topic_of(fields))

    def _seal_puts(self, fields: _Fields) -> None:
        self._each(fields, "jobs", self._seal_put)

    def _seal_finish(self, fields: _Fields, topic: str) -> None:
        self._seal(fields, topic)
        self._each(fields, "put", self._seal_put)

    def _seal_schedule(self, fields: _Fields) -> None:
        """The service leaves a schedule alone that is put again unchanged, so this is encrypted to the same again."""
        job = _fields_of(fields.get("job", b"{}"))
        self._seal_new(job, _topic_of(fields), steady=True)
        if job:
            fields["job"] = Raw(_encode(job))

    def _seal_new(self, fields: _Fields, topic: str, *, steady: bool = False) -> None:
        """Encrypt a job to put. One without a body has null, which readers may require to be encrypted, too."""
        if self._cipher.is_for(topic):
            fields.setdefault("body", Raw(b"null"))
            self._seal(fields, topic, steady=steady)

    def _each(self, fields: _Fields, name: str, edit: Callable[[_Fields], None]) -> None:
        if name in fields:
            jobs = _jobs_of(fields[name])
            for job in jobs:
                edit(job)
            fields[name] = Raw(_encode(jobs))

    def _seal(self, fields: _Fields, topic: str, *, steady: bool = False) -> None:
        """Encrypt what a job, its change or its end says, in place."""
        cipher = self._cipher
        if not cipher.is_for(topic):
            return
        for part in ("body", "result"):
            if part in fields:
                sealed = cipher.encrypt_json(bytes(fields[part]), topic, part, steady=steady)
                fields[part] = Raw(_encode(sealed.as_json()))
        if cipher.headers and (headers := _texts_of(fields.get("headers", b"null"))):
            texts = {
                name: cipher.encrypt_text(text, topic, f"header:{name}", steady=steady)
                for name, text in headers.items()
            }
            fields["headers"] = Raw(_encode(texts))
        if cipher.errors and (error := _decode(fields.get("error", b"null"), type=str | None)):
            text = cipher.encrypt_text(error, topic, "error", most=ERROR_TEXT_MAX)
            fields["error"] = Raw(_encode(text))


def _topic_of(fields: _Fields) -> str:
    """The topic. One that is missing or no text is refused by the service, which must not see the body before."""
    topic = _decode(fields.get("topic", b"null"))
    return topic if isinstance(topic, str) else ""


class _Reader:
    """Decrypts jobs in the results of requests."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def opened(self, value: Any) -> Any:
        """The result of a request with all jobs in it decrypted; see `_Unreadable` for those that cannot be."""
        match value:
            case Job():
                return self._job(value)
            case list():
                return [*map(self.opened, value)]
            case tuple():
                return (*map(self.opened, value),)
            case PutResult():
                return value if value.job is None else replace(value, job=self._job(value.job))
            case PutResults():
                return replace(value, results=self.opened(value.results))
            case Schedule():
                return self._schedule(value)
            case SchedulePage():
                return replace(value, schedules=self.opened(value.schedules))
            case Explanation():
                reasons = [replace(one, error=self._error(one.error, value.topic)) for one in value.reasons]
                return replace(value, reasons=reasons)
        return value

    def _job(self, job: Job) -> Job:
        topic, changes = job.topic, dict[str, Any]()
        if job.last_error is not None:
            changes["last_error"] = self._error(job.last_error, topic)
        if job.attempts_log:
            changes["attempts_log"] = [replace(one, error=self._error(one.error, topic)) for one in job.attempts_log]
        if job.followed_by is not None:
            body = self._if_readable(job.followed_by.body, topic, "body")
            changes["followed_by"] = replace(job.followed_by, body=body)
        try:
            return replace(job, **changes, **self._values(job))
        except Undecryptable as error:
            return _unreadable(replace(job, **changes), error)

    def _values(self, job: Job) -> dict[str, Any]:
        """What handlers work on. Raises Undecryptable."""
        values: dict[str, Any] = {}
        if job.body is not UNSET:
            values["body"] = self._body(job)
        if job.result is not None:
            values["result"] = self._cipher.decrypt(job.result, topic=job.topic, part="result")
        if job.headers_or_none:
            values["headers_or_none"] = self._headers(job.headers_or_none, job.topic)
        return values

    def _body(self, job: Job) -> Any:
        body, topic = job.body, job.topic
        if job.items and isinstance(body, list):
            return self._items(body, topic)
        opened = self._cipher.decrypt(body, topic=topic)
        return self._end(body) if opened is body and isinstance(body, dict) else opened

    def _items(self, items: list[Any], topic: str) -> list[Any]:
        """A body that puts with `append` have collected: each has encrypted its own."""
        return [self._cipher.decrypt(item, topic=topic) for item in items]

    def _end(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a job that the service has put because another one ended: the parts of that are encrypted."""
        topic, outcome = body.get("topic"), body.get("outcome")
        if not isinstance(topic, str) or not isinstance(outcome, str) or outcome not in _ENDS:
            return body
        opened = dict(body)
        if isinstance(collected := body.get("body"), list) and any(map(key_of, collected)):
            opened["body"] = self._items(collected, topic)
        elif "body" in body:
            opened["body"] = self._cipher.decrypt(body["body"], topic=topic)
        if "result" in body:
            opened["result"] = self._cipher.decrypt(body["result"], topic=topic, part="result")
        if "error" in body:
            opened["error"] = self._error(body["error"], topic)
        if isinstance(headers := body.get("headers"), dict):
            opened["headers"] = self._headers(headers, topic)
        return opened

    def _headers(self, headers: dict[str, str], topic: str) -> dict[str, str]:
        return {name: self._cipher.decrypt(text, topic=topic, part=f"header:{name}") for name, text in headers.items()}

    def _schedule(self, schedule: Schedule) -> Schedule:
        job = dict(schedule.job)
        if "body" in job:
            job["body"] = self._if_readable(job["body"], schedule.topic, "body")
        if isinstance(headers := job.get("headers"), dict):
            job["headers"] = {
                name: self._if_readable(text, schedule.topic, f"header:{name}") for name, text in headers.items()
            }
        return replace(schedule, job=job)

    def _error(self, text: str | None, topic: str) -> str | None:
        """An error; one that the service has cut off, as it does in the log of attempts, stays encrypted."""
        opened: str | None = self._if_readable(text, topic, "error")
        return opened

    def _if_readable(self, value: Value, topic: str, part: str) -> Value | Any:
        """What people look at, and handlers do not work on, stays as it is if it cannot be decrypted."""
        try:
            return self._cipher.decrypt(value, topic=topic, part=part)
        except Undecryptable:
            return value


class _Unreadable:
    """A job that cannot be decrypted: to read its body, result or headers raises why. `fields` are as the service sent
    them. It can be released, buried and finished as others can.
    """

    __slots__ = ()
    sealed: Job
    why_not: Undecryptable

    @property
    def fields(self) -> dict[str, Any]:
        return self.sealed.fields

    @property
    def body(self) -> Any:
        raise self.why_not.with_traceback(None)

    @property
    def result(self) -> Any:
        raise self.why_not.with_traceback(None)

    @property
    def headers(self) -> Any:
        raise self.why_not.with_traceback(None)


class _UnreadableJob(_Unreadable, Job, frozen=True, kw_only=True, eq=False):
    sealed: Job
    why_not: Undecryptable


class _UnreadableDelivery(_Unreadable, Delivery, frozen=True, kw_only=True, eq=False):
    sealed: Job
    why_not: Undecryptable


def _unreadable(job: Job, error: Undecryptable) -> Job:
    kind = _UnreadableDelivery if isinstance(job, Delivery) else _UnreadableJob
    fields = {name: getattr(job, name) for name in job.__struct_fields__}
    return kind(**fields, sealed=job, why_not=error.with_traceback(None))
