"""The client's errors in the words of the command line: a refused field is named as the option that set it."""

from __future__ import annotations

import re

import click
from click.core import ParameterSource

from deferd.cli.framework.command import parameter_name
from deferd.client.errors import NoAnswer, UnexpectedAnswer, Unreachable
from deferd.contract.errors import DeferdError, FieldError, InvalidInput, PayloadTooLarge, Unauthorized

_PARTS_OF_A_REQUEST = ("body", "query", "path")


def sentences(error: DeferdError, ctx: click.Context) -> list[str]:
    """What went wrong, one line for each error; `ctx` is the context of the command."""
    if isinstance(error, InvalidInput):
        return [_refused(field_error, ctx) for field_error in error.field_errors]
    return [sentence(error)]


def sentence(error: DeferdError) -> str:
    """What went wrong, in one line."""
    text = str(error)
    match error:
        case Unreachable():
            return f"the service cannot be reached: {text} (set its URL by --url or DEFERD_URL)"
        case NoAnswer():
            return f"no response from the service, so it is not known whether this was done: {text}"
        case UnexpectedAnswer(is_problem=True):
            return f"the service failed: {text}"
        case UnexpectedAnswer():
            return f"{text} (is the URL that of a service? set it by --url or DEFERD_URL)"
        case PayloadTooLarge():
            return f"{text}, the limit of the service (its --max-body-bytes)"
        case Unauthorized():
            return f"{text or 'a key is required'} (set it by --key or DEFERD_KEY)"
    return text


def _refused(field_error: FieldError, ctx: click.Context) -> str:
    path = list(field_error.path)
    if path and path[0] in _PARTS_OF_A_REQUEST:
        del path[0]
    if path[:1] in (["jobs"], ["select"]):
        del path[0]
    value = f"{field_error.value:g}" if isinstance(field_error.value, float) else repr(field_error.value)
    shown = f" (it is {_cut(value)})" if field_error.value is not None else ""
    return f"{_argument([str(step) for step in path], ctx)} {field_error.message}{shown}".strip()


def _argument(path: list[str], ctx: click.Context) -> str:
    """The option or argument that set the field at `path`, and the rest of the path."""
    if not path:
        return "the request:"
    first, *more = path
    rest = "".join(f"[{step}]" if re.fullmatch(r"\d+", step) else f".{step}" for step in more)
    names = {
        parameter.name: parameter_name(parameter)
        for parameter in ctx.command.params
        if parameter.name and ctx.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT
    }
    return f"{names.get(first, first)}{rest}"


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."
