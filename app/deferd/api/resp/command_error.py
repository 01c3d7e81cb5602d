"""Errors of commands: those of the API by their codes in capitals, those of the protocol as Redis has them."""

from __future__ import annotations

import re
from typing import Any

import orjson

from deferd.api.dispatch import error_response
from deferd.api.resp import replies

_PLACE = re.compile(r"^(?:body|query|path)\.(?:jobs\.\d+\.)?")
"""Replaces the path of a field in errors: a command has only arguments, and all jobs of a SADD have the same
options."""


class CommandError(Exception):
    """A command is refused, or has failed. `code` is the first word of the reply."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code} {text}")

    def reply(self) -> bytes:
        """The error as a reply."""
        return replies.error(self.code, self.text)


class Disconnected(Exception):
    """The client has gone, so there is nobody to reply to."""


def invalid(name: str, text: str) -> CommandError:
    """The error for an argument that HTTP does not have, as the API words it."""
    return CommandError("VALIDATION", f"{name}: {text}")


def wrong_arity(command: str) -> CommandError:
    """The error for too few or too many arguments."""
    return CommandError("ERR", f"wrong number of arguments for '{command.lower()}' command")


def of_problem(document: bytes) -> CommandError:
    """The error of a problem document, RFC 9457."""
    problem = orjson.loads(document)
    text = problem["detail"]
    if "errors" in problem:
        text = "; ".join(_field_text(one) for one in problem["errors"])
    return CommandError(problem["code"].upper(), text)


def of_exception(error: Exception) -> CommandError:
    """The error for what an operation raised; a bug is logged."""
    return of_problem(bytes(error_response(error).body))


def _field_text(error: dict[str, Any]) -> str:
    return f"{_PLACE.sub('', error['field'])}: {error['message']}"
