"""Handlers: the arguments that a handler function takes, and how a job's body becomes one of them."""

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
from deferd.contract.limits import TOPIC_LENGTH, TOPIC_OR_PATTERN
from deferd.worker.context import Context
from deferd.worker.outcomes import Reject, bounded

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
RunPlain = Callable[[Callable[[], Any]], Awaitable[Any]]

_SHOWN_ERRORS = 10
_SHOWN_CHARACTERS = 60
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class InvalidBody(Reject):
    """A body that is invalid for its handler. The reason names the fields and their errors."""


class Handler:
    """A function for the jobs of one topic, of all topics that match a pattern, or of one job definition.

    Its first parameter gets the body, parsed by pydantic into its annotation (unparsed if that is missing or Any), or
    into the definition's type, which the annotation must accept. A parameter annotated with `Context` gets the context.
    Both are optional.

    Raises:
        ValueError: the time limit is not above 0.
        TypeError: the function has other required parameters, or an annotation that pydantic cannot parse a body into
            or that does not accept the definition's type.
    """

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
        self.time_limit_s = None if time_limit is None else seconds(time_limit)
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ValueError(f"{self._name} needs a time limit above 0 seconds, not {self.time_limit_s:g}")
        parameters = self._parameters()
        self._body, self._context = self._used(parameters)
        self._positional = [
            one for one in parameters if one in (self._body, self._context) and one.kind is one.POSITIONAL_ONLY
        ]
        self._parser = None if self._body is None else self._parser_of(self._body)

    def arguments(self, body: Any, context: Context) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for the function. Raises InvalidBody."""
        named: dict[str, Any] = {}
        if self._body is not None:
            named[self._body.name] = body if self._parser is None else _parsed(self._parser, body)
        if self._context is not None:
            named[self._context.name] = context
        return [named.pop(parameter.name) for parameter in self._positional], named

    async def call(self, context: Context, middleware: Sequence[Middleware], run_plain: RunPlain) -> Any:
        """Run the function on a job, inside the middleware; `run_plain` runs it if it is not async.

        Raises:
            InvalidBody: the body is invalid.
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
            # Evaluating an annotation can raise any exception.
            raise TypeError(
                f"{self._name} has parameters that cannot be inspected: {type(error).__name__}: {error}"
            ) from error

    def _used(self, parameters: list[inspect.Parameter]) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
        body = context = None
        for parameter in parameters:
            if parameter.kind in _VARIABLE:
                raise TypeError(f"{self._name} takes {parameter}, but a handler must name its parameters")
            if parameter.annotation is Context and context is None:
                context = parameter
            elif parameter.annotation is not Context and body is None:
                body = parameter
            elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
                raise TypeError(
                    f"{self._name} has a parameter {parameter.name!r} that gets no argument: a handler has one for the "
                    "body, and may have one that is annotated with Context"
                )
        return body, context

    def _parser_of(self, parameter: inspect.Parameter) -> TypeAdapter[Any] | None:
        annotation = parameter.annotation
        definition = self.definition
        if definition is not None:
            if not _accepts(annotation, definition.body_type):
                raise TypeError(
                    f"{self._name} takes {parameter}, but the body of this job is defined as "
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
            raise TypeError(f"{self._name} takes {annotation!r}, which pydantic cannot validate: {reason}") from error


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


def _type_name(of: Any) -> str:
    return of.__qualname__ if isinstance(of, type) else repr(of)


def _parsed(parser: TypeAdapter[Any], body: Any) -> Any:
    try:
        # From JSON, because only then does a strict model accept an instant as text.
        return parser.validate_json(to_json(body))
    except ValidationError as error:
        raise InvalidBody(_reason(error)) from None


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
