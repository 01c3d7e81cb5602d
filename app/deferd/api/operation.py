"""From a request to the call of its function: the route class of all calls under /jobs and /topics.

A function declares what it takes in its signature, and FastAPI draws the OpenAPI document from it::

    async def change_job(call: CurrentCall, topic: Topic, id: JobId, change: ChangeJob) -> Response

Here the same signature is read once, when the route is made, and each request is bound to it in three steps: the
parts of the path, one model for all query parameters (`Annotated[Model, Query()]`), one model for the body. This
takes a quarter of the time of FastAPI's own way and gives one place for strictness: what no model knows is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from fastapi import params
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.responses import Response

from deferd.api import audit, request_json
from deferd.api.call import Call
from deferd.api.faults import faults_of
from deferd.api.keys import Scope
from deferd.api.needs import need_of
from deferd.errors import FieldFault, InvalidInput

_QUERY_PARAMETERS_MAX = 100


class NoFields(BaseModel):
    """An empty object, `null`, or no body at all: the path and the query say everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NOTHING = NoFields()


class _Body(NamedTuple):
    """What a function takes as body; `left_out` is what no body or `null` means, None when there must be an object."""

    name: str
    model: type[BaseModel]
    left_out: BaseModel | None

    def read(self, raw: bytes) -> BaseModel:
        if not raw:
            if self.left_out is None:
                raise InvalidInput([FieldFault(("body",), "is missing: a JSON object is needed")])
            return self.left_out
        if self.left_out is not None and request_json.is_null(raw):
            return self.left_out
        given = request_json.parse_object(raw)
        try:
            return self.model.model_validate(given)
        except ValidationError as error:
            raise InvalidInput(faults_of(error, "body", given)) from error


class Check(Protocol):
    """What else a call must pass; both raise a DeferdError to refuse it."""

    def body(self, raw: bytes) -> None:
        """Look at the body as it came."""

    def arguments(self, given: Mapping[str, Any]) -> None:
        """Look at what the call is bound to."""


class Operation(APIRoute):
    """A route whose requests are bound strictly; see the module's text for what a function can declare.

    `need` says which key its calls need, and `what` is its name for the audit log.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._call_name: str | None = None
        self._path_values: list[tuple[str, Callable[[str], Any]]] = []
        self._query_model: tuple[str, type[BaseModel]] | None = None
        self._body: _Body | None = None
        self._read_signature(endpoint)
        self.need = need_of(endpoint)
        self.what = f"{'/'.join(sorted(self.methods or ()))} {path}"
        self._record_admin_actions()

    def _read_signature(self, endpoint: Callable[..., Any]) -> None:
        hints = get_type_hints(endpoint, include_extras=True)
        for name, parameter in inspect.signature(endpoint).parameters.items():
            hint = hints[name]
            bare, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if name in self.param_convertors:
                self._path_values.append((name, TypeAdapter(hint).validator.validate_python))
            elif any(isinstance(note, params.Query) for note in notes):
                self._query_model = name, bare
            elif issubclass(bare, BaseModel):
                left_out = None if parameter.default is inspect.Parameter.empty else parameter.default
                self._body = _Body(name, bare, left_out)
            elif bare is Call:
                self._call_name = name
            else:
                raise TypeError(f"{endpoint}: nothing of a request can be bound to {name}")

    def _record_admin_actions(self) -> None:
        if self.need.scope is Scope.ADMIN and self.methods != {"GET"}:
            if self._call_name is None:
                raise TypeError(f"{self.endpoint}: an admin call needs its Call, for the audit log")
            self.endpoint = audit.recorded(self.endpoint, self._call_name, self.what)

    async def answer(self, call: Call, check: Check | None = None) -> Response:
        """Answer `call`; `check` is shown the body and the bound arguments before, and may raise to refuse them.

        Raises InvalidInput for what does not fit the signature, else what `check` or the function raises.
        """
        arguments: dict[str, Any] = {}
        faults: list[FieldFault] = []
        if self._path_values:
            self._bind_path(call.path_values, arguments, faults)
        if self._query_model is not None or call.query:
            self._bind_query(call.query, arguments, faults)
        if faults:
            raise InvalidInput(faults)
        if self._body is not None:
            raw = await call.read_body()
            if check is not None:
                check.body(raw)
            arguments[self._body.name] = self._body.read(raw)
        if self._call_name is not None:
            arguments[self._call_name] = call
        if check is not None:
            check.arguments(arguments)
        answer: Response = await self.endpoint(**arguments)
        return answer

    def _bind_path(self, given: dict[str, str], arguments: dict[str, Any], faults: list[FieldFault]) -> None:
        for name, validate in self._path_values:
            try:
                arguments[name] = validate(given[name])
            except ValidationError as error:
                faults.extend(
                    FieldFault(("path", name), fault.message, given[name]) for fault in faults_of(error, "path", given)
                )

    def _bind_query(self, query_string: bytes, arguments: dict[str, Any], faults: list[FieldFault]) -> None:
        given = _query_values(query_string, faults)
        if self._query_model is None:
            faults.extend(FieldFault(("query", name), "is not a known parameter") for name in given)
            return
        name, model = self._query_model
        try:
            arguments[name] = model.model_validate_strings(given)
        except ValidationError as error:
            faults.extend(faults_of(error, "query", given))


def _query_values(query_string: bytes, faults: list[FieldFault]) -> dict[str, str]:
    """The parameters by name. One that is given twice, or that is not UTF-8, is a fault."""
    values: dict[str, str] = {}
    if not query_string:
        return values
    try:
        pairs = parse_qsl(
            query_string.decode("latin-1"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_PARAMETERS_MAX,
        )
    except UnicodeDecodeError:
        faults.append(FieldFault(("query",), "must be UTF-8"))
        return values
    except ValueError:
        faults.append(FieldFault(("query",), f"must have at most {_QUERY_PARAMETERS_MAX} parameters"))
        return values
    for name, value in pairs:
        if name in values:
            faults.append(FieldFault(("query", name), "is given more than once", value))
        values[name] = value
    return values
