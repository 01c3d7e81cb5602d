"""The client's errors in the words of the command line: a refused field is named as the flag that set it."""

from __future__ import annotations

import argparse
import re

from deferd.client.errors import NoAnswer, UnexpectedAnswer, Unreachable
from deferd.contract.errors import DeferdError, FieldError, InvalidInput, PayloadTooLarge, Unauthorized

_POSITIONALS = {"topic": "TOPIC", "topics": "TOPIC", "id": "ID", "ids": "ID", "body": "BODY"}
_PARTS_OF_A_REQUEST = ("body", "query", "path")


def sentences(error: DeferdError, given: argparse.Namespace) -> list[str]:
    """What went wrong, a line each."""
    if isinstance(error, InvalidInput):
        return [_refused(fault, given) for fault in error.field_errors]
    return [sentence(error)]


def sentence(error: DeferdError) -> str:
    """What went wrong, in one line."""
    text = str(error)
    match error:
        case Unreachable():
            return f"the service cannot be reached: {text} (--url or DEFERD_URL says where it is)"
        case NoAnswer():
            return f"no answer from the service, so it is not known if this was done: {text}"
        case UnexpectedAnswer():
            return f"this is no answer of a deferd service, or it failed: {text}"
        case PayloadTooLarge():
            return f"{text}, which is what the service takes (its --max-body-bytes)"
        case Unauthorized():
            return f"{text or 'a key is needed'} (--key or DEFERD_KEY gives one)"
    return text


def _refused(fault: FieldError, given: argparse.Namespace) -> str:
    path = list(fault.path)
    if path and path[0] in _PARTS_OF_A_REQUEST:
        del path[0]
    if path[:1] == ["jobs"]:
        del path[0]
    names = [str(step) for step in path]
    value = f"{fault.value:g}" if isinstance(fault.value, float) else repr(fault.value)
    shown = f" (it is {_cut(value)})" if fault.value is not None else ""
    return f"{_argument(names, given)} {fault.message}{shown}".strip()


def _argument(path: list[str], given: argparse.Namespace) -> str:
    """The flag or positional that set the field at `path`, and the way from there."""
    if not path:
        return "the request:"
    first, *more = path
    way = "".join(f"[{step}]" if re.fullmatch(r"\d+", step) else f".{step}" for step in more)
    if hasattr(given, first) and first != "set":
        flag = _POSITIONALS.get(first) if first in _POSITIONALS and not _is_flag(first, given) else _flag(first)
        return f"{flag}{way}"
    return f"{first}{way}"


def _is_flag(name: str, given: argparse.Namespace) -> bool:
    """Whether it is a flag here although it is a positional of other commands: the --id of put."""
    return name == "id" and given.command == "put"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."
