"""Handlers: which one is for a topic, the arguments that it takes, and what it knows about its job or jobs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Unpack, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from deferd.client.errors import Undecryptable
from deferd.client.job_definition import JobDefinition
from deferd.client.put_options import PutOptions, put_fields
from deferd.client.request_body import Seconds, seconds
from deferd.contract.limits import POP_COUNT_MAX, POP_TOPICS_MAX, TOPIC_LENGTH, TOPIC_OR_PATTERN
from deferd.contract.operations.jobs import Delivery
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.worker.outcomes import Reject, bounded, check_count, checked_job, checked_progress

_SHOWN_ERRORS = 10
_SHOWN_CHARACTERS = 60
_TOPICS_REMEMBERED = 10_000
_WITHIN_S = 1.0
_WITHIN_MAX_S = 60.0
_LISTS: tuple[Any, ...] = (list, Sequence)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class InvalidBody(Reject):
    """A body that is invalid for its handler. The reason names the fields and their errors, and quotes their values."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(_reason(error))
        self._kinds = sorted({details["type"] for details in error.errors(include_url=False, include_context=False)})

    def without_values(self) -> Reject:
        """The same for a body that only the application may read: the kinds of errors, as paths may have keys of it."""
        return Reject(bounded(f"the body does not fit: {', '.join(self._kinds)}"))


class Context:
    """The job that a handler works on, for handlers with a parameter of this type, and for middleware.

    `job` is the delivery: its topic, id, body, attempt and its other fields.
    """

    __slots__ = ("_loop", "_pid", "_puts", "_stopped", "_touch", "job")

    def __init__(self, job: Delivery, touch: Callable[..., Awaitable[object]], loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self._touch = touch
        self._loop = loop
        self._pid = os.getpid()
        self._stopped: object = None
        self._puts: list[dict[str, Any]] = []

    def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> None:
        """Put a job when this one is finished, in the same step: neither is done without the other.

        Nothing is sent now, and nothing is put if the handler fails. The arguments are those of `AsyncClient.put`;
        with those of a `Then` there may be 10 jobs. Their topics must be in the same shard of the store as this job's.
        If the service refuses them, the job is released with the reason.

        Raises:
            ValueError: there are more than 10 jobs.
            TypeError: an option is unknown.
            InvalidInput: a value is out of its bounds.
        """
        check_count(len(self._puts) + 1)
        self._puts.append(checked_job(put_fields(topic, body, options)))

    @property
    def puts(self) -> Sequence[dict[str, Any]]:
        """The jobs of `put` so far, as JSON objects."""
        return tuple(self._puts)

    @property
    def _body(self) -> Any:
        return self.job.body

    @property
    def topic(self) -> str:
        """The topic of the job: it tells the topics that match a pattern apart."""
        return self.job.topic

    @property
    def tags(self) -> Sequence[str]:
        """The tags of the job; empty for a job without tags."""
        return self.job.tags

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job; empty for a job without headers."""
        return self.job.headers

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end.

        True when the job was cancelled, its lease was lost, its time limit has passed, or the worker stops. An async
        handler also gets CancelledError; a plain one should check this now and then.
        """
        return self._stopped is not None

    async def touch(self) -> bool:
        """Extend the lease now, from an async handler. Returns False if the handler should end.

        The worker extends leases by itself. Call this to learn of a cancel at once instead of within a second. No error
        is raised when the service does not respond.
        """
        await self._touch(self)
        return not self.cancelled

    def touch_from_thread(self) -> bool:
        """Like `touch`, from a plain handler: blocks until the service has responded, some seconds at most.

        Raises:
            RuntimeError: this process was forked by the handler.
        """
        return self._from_thread(self.touch())

    async def progress(self, value: Any) -> bool:
        """Report how far the job is, from an async handler: to all who look at the job or wait for it.

        `value` is a number from 0 to 1, or any JSON value of at most 1024 bytes. It is sent at once, and extends the
        lease as `touch` does, which returns the same. A few reports a second are plenty.

        Raises:
            InvalidInput: the value is not JSON, or too long.
        """
        await self._touch(self, checked_progress(value))
        return not self.cancelled

    def progress_from_thread(self, value: Any) -> bool:
        """Like `progress`, from a plain handler, as `touch_from_thread`."""
        return self._from_thread(self.progress(value))

    def _from_thread(self, call: Coroutine[Any, Any, bool]) -> bool:
        if os.getpid() != self._pid:  # the event loop runs in the other process only
            call.close()
            raise RuntimeError("a process that a handler has forked cannot touch the job: do so in the handler")
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class JobEnd(NamedTuple):
    """What the handler of a batch has for one job: a value, as if it had returned it, or an error, as if raised."""

    value: Any
    error: BaseException | None


class BatchContext:
    """The jobs of a batch, for handlers with a parameter of this type, and for middleware.

    ::

        @worker.handler("orders.*", batch=100)
        def insert(orders: list[Order], batch: BatchContext) -> None:
            for order, job in zip(orders, batch):
                if order.total < 0:
                    batch.fail(job, Reject("a negative total"))

    It contains the `Context` of each job, in the order of the bodies. `finish` and `fail` give one job its outcome.
    When the handler returns, all others are finished; when it raises an exception, that is the outcome of all others.
    """

    __slots__ = ("_bodies", "_ends", "_jobs")

    def __init__(self) -> None:
        self._jobs: list[Context] = []
        self._bodies: list[Any] = []
        self._ends: dict[Context, JobEnd | None] = {}

    def add(self, job: Context, body: Any) -> None:
        """Add a job with its parsed body."""
        self._jobs.append(job)
        self._bodies.append(body)
        self._ends[job] = None

    def leave_out(self, job: Context, error: Exception) -> None:
        """Keep a job from the handler: this is its outcome."""
        self._ends[job] = JobEnd(None, error)

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Context]:
        return iter(self._jobs)

    def __getitem__(self, index: int) -> Context:
        return self._jobs[index]

    @property
    def _body(self) -> list[Any]:
        return self._bodies

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end: all its jobs are `cancelled`, as when the worker stops.

        An async handler then also gets CancelledError. When only some jobs are cancelled it continues; `job.cancelled`
        tells which.
        """
        return all(job.cancelled for job in self._jobs)

    def finish(self, job: Context, result: Any = None) -> None:
        """Finish a job when the handler has ended, also if that raises an exception.

        `result` is what the handler of a single job returns, also a `Then`. The last outcome given to a job counts.

        Raises:
            ValueError: the job is not in this batch.
        """
        self._note(job, JobEnd(result, None))

    def fail(self, job: Context, error: BaseException) -> None:
        """As `finish`, with the outcome of a handler that raises `error`: any exception, Retry, Snooze or Reject.

        Raises:
            TypeError: `error` is not an exception.
            ValueError: the job is not in this batch.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"a job fails with an exception, not {error!r}")
        self._note(job, JobEnd(None, error))

    def _note(self, job: Context, end: JobEnd) -> None:
        if job not in self._ends:
            raise ValueError(f"{job!r} is not a job of this batch")
        self._ends[job] = end

    def end_of(self, job: Context) -> JobEnd | None:
        """What the handler has for a job so far."""
        return self._ends[job]


CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
RunPlain = Callable[[Callable[[], Any]], Awaitable[Any]]


class Handler:
    """A function for the jobs of one topic, of all topics that match a pattern, or of one job definition.

    Its first parameter gets the body, parsed by pydantic into its annotation (unparsed if that is missing or Any), or
    into the definition's type, which the annotation must accept. A parameter annotated with `Context` gets the context.
    Both are optional.

    Raises:
        ValueError: the time limit is not above 0.
        TypeError: the time limit is no duration; or the function has other required parameters, or an annotation that
            pydantic cannot parse a body into or that does not accept the definition's type.
    """

    batch: int | None = None
    """The most jobs of one call, for handlers that take several."""
    _context_type: type = Context
    _wrong_context: type = BatchContext
    _annotation_for_type = "that"

    def __init__(
        self, job: str | JobDefinition[Any], function: Callable[..., Any], *, time_limit: Seconds | None = None
    ) -> None:
        self.definition = job if isinstance(job, JobDefinition) else None
        topic = job.topic if isinstance(job, JobDefinition) else job
        if not callable(function):
            raise TypeError(f"the handler of topic {topic!r} must be a function, not {function!r}")
        self.topic = topic
        self.function = function
        self._name = f"{getattr(function, '__qualname__', None) or repr(function)}, for topic {topic!r},"
        if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
            raise TypeError(f"{self._name} is a generator, but a handler must return")
        self.is_async = _is(inspect.iscoroutinefunction, function)
        self.time_limit_s = None if time_limit is None else self._seconds("time_limit", time_limit)
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ValueError(f"{self._name} needs a time limit above 0 seconds, not {self.time_limit_s:g}")
        parameters = self._parameters()
        self._body, self._context = self._used(parameters)
        self._positional = [
            one for one in parameters if one in (self._body, self._context) and one.kind is one.POSITIONAL_ONLY
        ]
        self._parser = None if self._body is None else self._parser_of(self._body, self._body.annotation)

    def _seconds(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
            raise TypeError(f"{self._name} has {name}={value!r}, but that is a number of seconds or a timedelta")
        return seconds(value)

    def arguments(self, body: Any, context: Context | BatchContext) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for the function. Raises InvalidBody."""
        named: dict[str, Any] = {}
        if self._body is not None:
            named[self._body.name] = body if self._parser is None else _parsed(self._parser, body)
        if self._context is not None:
            named[self._context.name] = context
        return [named.pop(parameter.name) for parameter in self._positional], named

    async def call(self, context: Context | BatchContext, middleware: Sequence[Middleware], run_plain: RunPlain) -> Any:
        """Run the function on a job, inside the middleware; `run_plain` runs it if it is not async.

        Raises:
            InvalidBody: the body is invalid.
        """
        positional, named = self.arguments(context._body, context)
        if not middleware:
            return await self._call_function(positional, named, run_plain)
        call_next: CallNext = functools.partial(self._call_function, positional, named, run_plain)
        given: Any = context  # `check_layer` has looked at what the layers take
        for layer in reversed(middleware):
            call_next = functools.partial(layer, given, call_next)
        return await call_next()

    async def _call_function(self, positional: list[Any], named: dict[str, Any], run_plain: RunPlain) -> Any:
        if self.is_async:
            return await self.function(*positional, **named)
        return await run_plain(functools.partial(self.function, *positional, **named))

    def _parameters(self) -> list[inspect.Parameter]:
        try:
            return [*inspect.signature(self.function, eval_str=True).parameters.values()]
        except Exception as error:
            # Evaluating an annotation can raise any exception.
            raise TypeError(
                f"{self._name} has parameters that cannot be inspected: {type(error).__name__}: {error}"
            ) from error

    def _used(self, parameters: list[inspect.Parameter]) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
        body = context = None
        for parameter in parameters:
            if parameter.kind in _VARIABLE:
                raise TypeError(f"{self._name} takes {parameter}, but a handler must name its parameters")
            if parameter.annotation is self._wrong_context:
                with_or_without = "without" if self.batch is None else "with"
                raise TypeError(
                    f"{self._name} is declared {with_or_without} batch=, so it takes a {self._context_type.__name__}, "
                    f"not a {self._wrong_context.__name__}"
                )
            if parameter.annotation is self._context_type and context is None:
                context = parameter
            elif parameter.annotation is not self._context_type and body is None:
                body = parameter
            elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
                raise TypeError(
                    f"{self._name} has a parameter {parameter.name!r} that gets no argument: a handler has one for the "
                    f"body, and may have one that is annotated with {self._context_type.__name__}"
                )
        return body, context

    def _parser_of(self, parameter: inspect.Parameter, annotation: Any) -> TypeAdapter[Any] | None:
        """The parser of a body for the annotation of the parameter, or of the items of a list."""
        definition = self.definition
        if definition is not None:
            if not _accepts(annotation, definition.body_type):
                raise TypeError(
                    f"{self._name} takes {parameter}, but the body of this job is defined as "
                    f"{_type_name(definition.body_type)}: annotate the parameter with {self._annotation_for_type}"
                )
            adapter: TypeAdapter[Any] = definition.adapter
            return adapter
        if annotation is inspect.Parameter.empty or annotation is Any or annotation is object:
            return None
        try:
            return TypeAdapter(annotation)
        except PydanticUserError as error:
            reason = str(error).splitlines()[0]
            raise TypeError(f"{self._name} takes {annotation!r}, which pydantic cannot validate: {reason}") from error


class BatchHandler(Handler):
    """A handler that gets up to `batch` jobs of its topics in one call, collected for `within` from the first.

    Its first parameter gets a list of bodies, each parsed into the annotation of the items. A parameter annotated with
    `BatchContext` gets the context. Both are optional.

    Raises:
        ValueError: `batch`, `within` or the time limit is out of its range.
        TypeError: as for Handler, `within` is no duration, or the first parameter is not annotated as a list.
    """

    batch: int
    _context_type = BatchContext
    _wrong_context = Context
    _annotation_for_type = "a list of that"

    def __init__(
        self,
        job: str | JobDefinition[Any],
        function: Callable[..., Any],
        *,
        batch: int,
        within: Seconds | None = None,
        time_limit: Seconds | None = None,
    ) -> None:
        self.batch = batch
        super().__init__(job, function, time_limit=time_limit)
        if type(batch) is not int or not 1 <= batch <= POP_COUNT_MAX:
            raise ValueError(f"{self._name} takes batches of 1 to {POP_COUNT_MAX} jobs, not {batch!r}")
        self.within_s = _WITHIN_S if within is None else self._seconds("within", within)
        if not 0 <= self.within_s <= _WITHIN_MAX_S:
            raise ValueError(f"{self._name} collects jobs within 0 to {_WITHIN_MAX_S:g} seconds, not {self.within_s:g}")
        self._item_parser, self._parser = self._parser, None

    def context_of(self, jobs: Sequence[Context]) -> BatchContext:
        """The context of a call with these jobs. Those whose body is invalid or unreadable are left out."""
        context = BatchContext()
        for job in jobs:
            try:
                body = job.job.body
                parsed = body if self._item_parser is None else _parsed(self._item_parser, body)
            except (InvalidBody, Undecryptable) as error:
                context.leave_out(job, error)
            else:
                context.add(job, parsed)
        return context

    async def call(
        self, context: Context | BatchContext, middleware: Sequence[Middleware], run_plain: RunPlain
    ) -> None:
        """Run the function on the jobs of a batch, inside the middleware; `run_plain` runs it if it is not async.

        Raises:
            TypeError: it has returned a value.
        """
        value = await super().call(context, middleware, run_plain)
        if value is not None:
            raise TypeError(
                f"the handler of a batch returned a value ({type(value).__name__}): give results to its jobs by "
                "BatchContext.finish"
            )

    def _parser_of(self, parameter: inspect.Parameter, annotation: Any) -> TypeAdapter[Any] | None:
        item = annotation
        if annotation is not inspect.Parameter.empty and annotation is not Any and annotation is not object:
            if annotation not in _LISTS and get_origin(annotation) not in _LISTS:
                raise TypeError(f"{self._name} takes {parameter}, but a batch has a list of bodies, as in list[int]")
            item = next(iter(get_args(annotation)), Any)
        return super()._parser_of(parameter, item)


def check_layer(layer: Middleware) -> None:
    """Check that a middleware takes the context of a batch. Raises TypeError unless it says so by its annotation."""
    try:
        first = next(iter(inspect.signature(layer, eval_str=True).parameters.values()), None)
    except Exception:  # noqa: BLE001 (evaluating an annotation can raise any exception)
        first = None
    annotation = None if first is None else first.annotation
    if annotation is not BatchContext and BatchContext not in get_args(annotation):
        raise TypeError(
            f"the middleware {layer!r} also wraps the handlers that take batches, and does not say that it takes their "
            "context: annotate its first parameter with Context | BatchContext"
        )


def check_topic(topic: object) -> None:
    """Check the topic or pattern of a handler.

    Raises ValueError if it is invalid, TypeError for a function: the topic was forgotten.
    """
    if isinstance(topic, JobDefinition):
        return
    if callable(topic):
        raise TypeError(
            f'a handler is declared with its topic, as in @worker.handler("orders.close"), but {topic!r} has none'
        )
    if not isinstance(topic, str) or not re.fullmatch(TOPIC_OR_PATTERN, topic):
        shape = f"1 to {TOPIC_LENGTH} letters, digits and ._:- and begins with a letter or digit"
        raise ValueError(f"a topic is {shape}, unlike {topic!r}; a pattern may also have *")


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether a function, or the `__call__` of a callable object, is of this kind."""
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 (reads the method, not whether it is callable)


def _accepts(annotation: Any, body_type: Any) -> bool:
    """Whether a parameter with this annotation accepts a value of this type."""
    if annotation is inspect.Parameter.empty or annotation is Any or annotation == body_type:
        return True
    try:
        return issubclass(body_type, annotation)
    except TypeError:  # a generic, a union, a TypedDict
        return False


def _type_name(body_type: Any) -> str:
    return body_type.__qualname__ if isinstance(body_type, type) else repr(body_type)


def _parsed(parser: TypeAdapter[Any], body: Any) -> Any:
    try:
        # From JSON, because only then does a strict model accept an instant as text.
        return parser.validate_json(to_json(body))
    except ValidationError as error:
        raise InvalidBody(error) from None


def _reason(error: ValidationError) -> str:
    """``the body does not fit: items.0.price: Input should be a valid number, not 'ten'``."""
    texts = []
    for details in error.errors(include_url=False, include_context=False)[:_SHOWN_ERRORS]:
        path = ".".join(map(str, details["loc"]))
        text = details["msg"]
        if details["type"] != "missing":
            text += f", not {_shown(details['input'])}"
        texts.append(f"{path}: {text}" if path else text)
    more = error.error_count() - len(texts)
    if more > 0:
        texts.append(f"and {more} more")
    return bounded(f"the body does not fit: {'; '.join(texts)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


class TopicHandlers:
    """Handlers by topic or pattern. A topic's own handler precedes those of patterns; the first pattern that matches
    counts, in the order of their declaration.

    The iteration is over topics and patterns as they were declared.
    """

    def __init__(self) -> None:
        self._declared: dict[str, Handler] = {}
        self._patterns: dict[str, TopicPatterns] = {}
        self._matched: dict[str, Handler | None] = {}

    def add(self, handler: Handler) -> None:
        """Declare a handler. Raises ValueError if its topic has one, or there are 32 already."""
        topic = handler.topic
        if topic in self._declared:
            raise ValueError(f"topic {topic!r} has a handler already: {self._declared[topic].function!r}")
        if len(self._declared) == POP_TOPICS_MAX:
            raise ValueError(f"a worker has handlers for at most {POP_TOPICS_MAX} topics: {topic!r} is one too many")
        self._declared[topic] = handler
        if is_pattern(topic):
            self._patterns[topic] = TopicPatterns([topic])
        self._matched.clear()

    @property
    def take_batches(self) -> bool:
        """Whether any of them takes batches."""
        return any(handler.batch is not None for handler in self._declared.values())

    @property
    def jobs_per_call(self) -> int:
        """How many jobs a call of each of them takes at least, if there are so many."""
        return min((handler.batch or 1 for handler in self._declared.values()), default=1)

    def find(self, topic: str) -> Handler | None:
        """The handler for the jobs of a topic, None if there is none."""
        declared = self._declared.get(topic)
        return self._match(topic) if declared is None and self._patterns else declared

    def _match(self, topic: str) -> Handler | None:
        if topic not in self._matched:
            if len(self._matched) >= _TOPICS_REMEMBERED:
                self._matched.clear()
            matching = (one for one, patterns in self._patterns.items() if patterns.match(topic))
            self._matched[topic] = next((self._declared[one] for one in matching), None)
        return self._matched[topic]

    def __getitem__(self, topic: str) -> Handler:
        handler = self.find(topic)
        if handler is None:
            raise KeyError(topic)
        return handler

    def __contains__(self, topic: str) -> bool:
        return self.find(topic) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)
