"""The schedules that a program declares beside its handlers, and their registration at the service."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from deferd.client import AsyncClient
from deferd.client.put_options import body_errors
from deferd.client.request_body import as_json
from deferd.client.scheduling import ScheduleOptions, definition_of, put_schedule
from deferd.client.sender import RetryPolicy
from deferd.contract.errors import DeferdError, FieldError, InvalidInput, PayloadTooLarge
from deferd.contract.limits import TOPIC_PATTERN
from deferd.contract.operations.schedules_and_calendars import PutSchedule, ScheduledJob
from deferd.contract.topic_patterns import is_pattern
from deferd.worker.handlers import Handler, TopicHandlers
from deferd.worker.log import LOG, FailureLog

_RETRY = RetryPolicy(heeds_proxies=False)
_START_S = 1.0
"""How long the first jobs wait for the registration: a definition that is refused ends the start before them."""


class _Declaration(NamedTuple):
    function: Callable[..., Any]
    name: str | None
    topic: str | None
    options: Mapping[str, Any]


class DeclaredSchedules:
    """The schedules of a worker; those of a function without a handler make it one."""

    def __init__(self, handlers: TopicHandlers) -> None:
        self._handlers = handlers
        self._declared: list[_Declaration] = []

    def add(
        self, function: Callable[..., Any], name: str | None, topic: str | None, options: Mapping[str, Any]
    ) -> None:
        """Declare a schedule for the function.

        Raises:
            TypeError: an option is unknown.
            ValueError: the name or the topic is invalid.
        """
        definition_of("", options, ScheduleOptions)
        for what, value in (("name", name), ("topic", topic)):
            if value is not None and not re.fullmatch(TOPIC_PATTERN, value):
                raise ValueError(f"the {what} of a schedule has the form of a topic, unlike {value!r}")
        self._declared.append(_Declaration(function, name, topic, options))

    def make_handlers(self) -> None:
        """Declare functions as handlers of the topics of their schedules, where they are not yet."""
        for declaration in self._declared:
            function_name: str = getattr(declaration.function, "__name__", "")
            topic = declaration.topic or self._handled_topic(declaration.function) or function_name
            if not re.fullmatch(TOPIC_PATTERN, topic):
                raise ValueError(f"the schedule of {declaration.function!r} needs a topic: its name cannot be one")
            handler = self._handlers.find(topic)
            if handler is None or handler.function is not declaration.function:
                self._handlers.add(Handler(topic, declaration.function))

    def definitions(self) -> dict[str, dict[str, Any]]:
        """The definitions by name, as JSON objects; after `make_handlers`.

        Raises:
            ValueError: two have the same name.
            InvalidInput: a definition is invalid.
        """
        found: dict[str, dict[str, Any]] = {}
        for declaration in self._declared:
            topic = declaration.topic or self._handled_topic(declaration.function)
            assert topic is not None  # noqa: S101 (for mypy: make_handlers)
            name = declaration.name or topic
            if name in found:
                raise ValueError(f"two schedules are named {name!r}: give each a name")
            try:
                found[name] = self._definition(topic, declaration.options)
            except InvalidInput as error:
                raise _of_schedule(name, error) from None
        return found

    def _handled_topic(self, function: Callable[..., Any]) -> str | None:
        topics = [topic for topic in self._handlers if self._handlers[topic].function is function]
        concrete = [topic for topic in topics if not is_pattern(topic)]
        if len(topics) > 1 or (topics and not concrete):
            listed = ", ".join(topics)
            raise ValueError(f"the schedule of {function!r} needs a topic: the function handles {listed}")
        return concrete[0] if concrete else None

    def _definition(self, topic: str, options: Mapping[str, Any]) -> dict[str, Any]:
        job = dict(options.get("job") or {})
        definition = self._handlers[topic].definition
        if definition is not None:
            put = definition.fields(job.pop("body", None))
            job = {name: put[name] for name in ScheduledJob.model_fields if name in put} | job
        fields: dict[str, Any] = as_json(definition_of(topic, {**options, "job": job}))
        try:
            PutSchedule.model_validate(fields)
        except ValidationError as error:
            raise InvalidInput(body_errors(error)) from None
        return fields


@contextlib.asynccontextmanager
async def schedules_registered(
    client: AsyncClient, definitions: Mapping[str, Mapping[str, Any]], stop: asyncio.Event
) -> AsyncIterator[None]:
    """Put the schedules, each again and again until the service takes it, also during the block.

    The block begins when all are registered, when one has to be retried, or after a second. If the service refuses one,
    `stop` is set, and the error is raised instead of the block, or after it.
    """
    if not definitions:
        yield
        return
    registration = _Registration(client, definitions, stop)
    task = asyncio.create_task(registration.run())
    waits = [asyncio.create_task(event.wait()) for event in (registration.first_pass, stop)]
    try:
        await asyncio.wait(waits, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if registration.error is None:
            yield
    finally:
        for waiting in (task, *waits):
            waiting.cancel()
    if registration.error is not None:
        raise registration.error


class _Registration:
    def __init__(self, client: AsyncClient, definitions: Mapping[str, Mapping[str, Any]], stop: asyncio.Event) -> None:
        self._client = client
        self._definitions = definitions
        self._stop = stop
        self.first_pass = asyncio.Event()
        self.error: DeferdError | None = None

    async def run(self) -> None:
        for name, definition in self._definitions.items():
            try:
                await self._register(name, definition)
            except InvalidInput as error:
                self.error = _of_schedule(name, error)
            except DeferdError as error:
                self.error = error
            if self.error is not None:
                LOG.error("schedule %s is refused: %s", name, self.error, extra={"schedule": name})
                self._stop.set()
                return
        self.first_pass.set()

    async def _register(self, name: str, definition: Mapping[str, Any]) -> None:
        failing = FailureLog(f"registering schedule {name}")
        failures = 0
        while True:
            try:
                schedule = await self._client.send(put_schedule(name, definition))
            except (InvalidInput, PayloadTooLarge):
                raise
            except DeferdError as error:
                failing.failed(error)
                self.first_pass.set()
                await asyncio.sleep(_RETRY.pause_s(failures, error))
                failures += 1
            else:
                failing.succeeded()
                next_run = schedule.fields.get("next_run_at") or "none"
                LOG.info("schedule %s is registered; next run: %s", name, next_run, extra={"schedule": name})
                return


def _of_schedule(name: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(
        [FieldError(("schedule", name, *one.path[1:]), one.message, one.value) for one in error.field_errors]
    )
