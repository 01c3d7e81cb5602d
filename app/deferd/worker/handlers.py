"""Handlers as they are declared: what a function is to be called with, and how a body becomes its argument."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from deferd.client.durations import Seconds, seconds
from deferd.client.job_definition import JobDefinition
from deferd.contract.limits import TOPIC_LENGTH, TOPIC_PATTERN
from deferd.worker.context import Context
from deferd.worker.outcomes import Reject, bounded

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
RunPlain = Callable[[Callable[[], Any]], Awaitable[Any]]

_FAULTS_TOLD = 10
_SHOWN_CHARACTERS = 60
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class UnfitBody(Reject):
    """A body that does not parse into what its handler takes. The reason says which fields, and what is wrong."""


class Handler:
    """A function for the jobs of one topic, or of one job definition.

    Its first parameter gets the body, parsed by pydantic into its annotation (as it is, without one or with Any), or
    into the definition's type, which the annotation then must accept; a parameter annotated `Context` gets the job in
    hand. It may do without either.

    Raises:
        ValueError: the time limit is not above 0.
        TypeError: the function cannot be called with that, or has an annotation that no body can be parsed into, or
            that is not the definition's type.
    """

    def __init__(
        self, job: str | JobDefinition[Any], function: Callable[..., Any], *, time_limit: Seconds | None = None
    ) -> None:
        self._definition = job if isinstance(job, JobDefinition) else None
        topic = job.topic if isinstance(job, JobDefinition) else job
        if not callable(function):
            raise TypeError(f"the handler of topic {topic!r} must be a function, not {function!r}")
        self.topic = topic
        self.function = function
        self._told = f"{getattr(function, '__qualname__', None) or repr(function)}, for topic {topic!r},"
        if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
            raise TypeError(f"{self._told} yields, where a handler returns")
        self.is_async = _is(inspect.iscoroutinefunction, function)
        self.time_limit_s = None if time_limit is None else seconds(time_limit)
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ValueError(f"{self._told} needs a time limit above 0 seconds, not {self.time_limit_s:g}")
        parameters = self._parameters()
        self._body, self._context = self._used(parameters)
        self._positional = [
            one for one in parameters if one in (self._body, self._context) and one.kind is one.POSITIONAL_ONLY
        ]
        self._parser = None if self._body is None else self._parser_of(self._body)

    def arguments(self, body: Any, context: Context) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function with. Raises UnfitBody."""
        named: dict[str, Any] = {}
        if self._body is not None:
            named[self._body.name] = body if self._parser is None else _parsed(self._parser, body)
        if self._context is not None:
            named[self._context.name] = context
        return [named.pop(parameter.name) for parameter in self._positional], named

    async def call(self, context: Context, middleware: Sequence[Middleware], run_plain: RunPlain) -> Any:
        """Run the function on the job in hand, inside the middleware; `run_plain` runs it when it is not async.

        Raises:
            UnfitBody: the body does not parse.
        """
        positional, named = self.arguments(context.job.body, context)
        if not middleware:
            return await self._call_function(positional, named, run_plain)
        call_next: CallNext = functools.partial(self._call_function, positional, named, run_plain)
        for layer in reversed(middleware):
            call_next = functools.partial(layer, context, call_next)
        return await call_next()

    async def _call_function(self, positional: list[Any], named: dict[str, Any], run_plain: RunPlain) -> Any:
        if self.is_async:
            return await self.function(*positional, **named)
        return await run_plain(functools.partial(self.function, *positional, **named))

    def _parameters(self) -> list[inspect.Parameter]:
        try:
            return [*inspect.signature(self.function, eval_str=True).parameters.values()]
        except Exception as error:
            # An annotation is any expression, so this is any error.
            raise TypeError(
                f"{self._told} has parameters that are not understood: {type(error).__name__}: {error}"
            ) from error

    def _used(self, parameters: list[inspect.Parameter]) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
        body = context = None
        for parameter in parameters:
            if parameter.kind in _VARIABLE:
                raise TypeError(f"{self._told} takes {parameter}, where a handler names its parameters")
            if parameter.annotation is Context and context is None:
                context = parameter
            elif parameter.annotation is not Context and body is None:
                body = parameter
            elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
                raise TypeError(
                    f"{self._told} gets a body and, in a parameter annotated so, a Context: nothing is left for its "
                    f"parameter {parameter.name!r}"
                )
        return body, context

    def _parser_of(self, parameter: inspect.Parameter) -> TypeAdapter[Any] | None:
        annotation = parameter.annotation
        definition = self._definition
        if definition is not None:
            if not _accepts(annotation, definition.body_type):
                raise TypeError(
                    f"{self._told} takes {parameter}, but the body of this job is defined as "
                    f"{_type_name(definition.body_type)}: annotate the parameter with that"
                )
            adapter: TypeAdapter[Any] = definition.adapter
            return adapter
        if annotation is inspect.Parameter.empty or annotation is Any or annotation is object:
            return None
        try:
            return TypeAdapter(annotation)
        except PydanticUserError as error:
            reason = str(error).splitlines()[0]
            raise TypeError(f"{self._told} takes {annotation!r}, into which no body can be parsed: {reason}") from error


def checked_topic(topic: object) -> str:
    """The topic, of a definition its own. Raises ValueError if it is none, TypeError for a function: none was given."""
    if isinstance(topic, JobDefinition):
        return topic.topic
    if callable(topic):
        raise TypeError(
            f'a handler is declared with its topic: @worker.handler("orders.close"), unlike that of {topic!r}'
        )
    if not isinstance(topic, str) or not re.fullmatch(TOPIC_PATTERN, topic):
        shape = f"1 to {TOPIC_LENGTH} letters, digits and ._:- and begins with a letter or digit"
        raise ValueError(f"a topic is {shape}, unlike {topic!r}")
    return topic


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether a function, or the `__call__` of a callable object, is of a kind."""
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 (it is not asked if it is callable)


def _accepts(annotation: Any, body_type: Any) -> bool:
    """Whether a parameter annotated so can be given a value of this type."""
    if annotation is inspect.Parameter.empty or annotation is Any or annotation == body_type:
        return True
    try:
        return issubclass(body_type, annotation)
    except TypeError:  # a generic, a union, a TypedDict
        return False


def _type_name(of: Any) -> str:
    return of.__qualname__ if isinstance(of, type) else repr(of)


def _parsed(parser: TypeAdapter[Any], body: Any) -> Any:
    try:
        # As JSON, for that is what it was: a strict model takes an instant from text then, and nothing else.
        return parser.validate_json(to_json(body))
    except ValidationError as error:
        raise UnfitBody(_faults(error)) from None


def _faults(error: ValidationError) -> str:
    """``the body does not fit: items.0.price: Input should be a valid number, not 'ten'``."""
    told = []
    for fault in error.errors(include_url=False, include_context=False)[:_FAULTS_TOLD]:
        at = ".".join(map(str, fault["loc"]))
        text = fault["msg"] if fault["type"] == "missing" else f"{fault['msg']}, not {_shown(fault['input'])}"
        told.append(f"{at}: {text}" if at else text)
    more = error.error_count() - len(told)
    if more > 0:
        told.append(f"and {more} more")
    return bounded(f"the body does not fit: {'; '.join(told)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
