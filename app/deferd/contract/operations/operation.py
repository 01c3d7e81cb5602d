"""What all operations have in common: the columns of their tables."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from deferd.contract import operations
from deferd.contract.operations.response import Response
from deferd.contract.scopes import Scope

Response_co = TypeVar("Response_co", bound=Response, covariant=True)


class Operation(NamedTuple, Generic[Response_co]):
    """An operation. Its id is its name in metrics, in the lists of changes and in the OpenAPI document.

    `scope` is what a key must allow, None for everybody. `response` is the type of a response with `status`; None: the
    route says what it is. `errors` are the codes of the problems that it may respond with, beside `validation` and, if
    it `needs_store`, `store_unavailable`. `repeatable`: to carry it out twice does no harm, so a client sends it again
    when a response was lost; False: only where the request itself says so, by an id or a receipt. `command` is its name
    in the Redis protocol, if it has one. `done` is what the console's list of changes says that a call did, as
    `paused topic`: the topic follows, behind `in` unless the words end with `topic` or `of`. Empty: calls are not
    recorded in `GET /activity`.
    """

    id: str
    method: str
    path: str
    tag: str
    scope: Scope | None
    summary: str
    description: str
    response: type[Response_co] | None = None
    response_description: str = ""
    errors: tuple[str, ...] = ()
    status: int = 200
    needs_store: bool = True
    repeatable: bool = True
    command: str = ""
    done: str = ""

    @property
    def all_errors(self) -> tuple[str, ...]:
        """The codes of the problems that it may respond with, without those that the service has for any request."""
        return ("validation", *self.errors, *(("store_unavailable",) if self.needs_store else ()))

    @property
    def has_body(self) -> bool:
        """Whether requests may have a body."""
        return self.method in {"POST", "PUT", "PATCH"}

    def path_for(self, *values: str) -> str:
        """The path of a request with these values, in the order of the path."""
        quoted = [value if type(value) is str and _is_plain(value) else quote(value, safe=":,*") for value in values]
        return _template_of(self.path) % (*quoted,)


_is_plain = re.compile("[A-Za-z0-9._:-]*").fullmatch
"""Quoting a name takes several times as long."""


@cache
def _template_of(path: str) -> str:
    return re.sub(r"{\w+}", "%s", path)


def all_operations() -> list[Operation[Any]]:
    """The rows of all modules of this package, by the names of the modules; a new module is found by itself."""
    import importlib  # noqa: PLC0415 (the client, which imports this module, never calls this)
    import pkgutil  # noqa: PLC0415 (as above)

    modules = [
        importlib.import_module(f"{operations.__name__}.{module.name}")
        for module in pkgutil.iter_modules(operations.__path__)
    ]
    return [row for module in modules for row in vars(module).values() if isinstance(row, Operation)]
