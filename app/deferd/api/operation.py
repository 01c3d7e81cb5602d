"""From a request to the call of its function: the route class of all calls under /jobs and /topics.

A function declares what it takes in its signature, and FastAPI draws the OpenAPI document from it::

    async def change_job(call: CurrentCall, topic: Topic, id: JobId, change: ChangeJob) -> Response

Here the same signature is read once, when the route is made, and each request is bound to it in three steps: the
parts of the path, one model for all query parameters (`Annotated[Model, Query()]`), one model for the body. This
takes a quarter of the time of FastAPI's own way and gives one place for strictness: what no model knows is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from fastapi import params
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.responses import Response

from deferd.api import request_body
from deferd.api.auth import audit_log
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import need_of
from deferd.api.call import Call
from deferd.api.request_body import PARSED_IN_THE_LOOP_BYTES
from deferd.api.validation_errors import FAULTS_MAX, faults_of
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput

_QUERY_PARAMETERS_MAX = 100
_large_bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
"""Parses the larger bodies. One thread: with several the event loop would wait longer for the interpreter's lock."""


class NoFields(BaseModel):
    """An empty object, `null`, or no body at all: the path and the query say everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NOTHING = NoFields()


class _Body(NamedTuple):
    """What a function takes as body; `left_out` is what no body or `null` means, None when there must be an object.

    `items` is the field that has a list of models, with the model, if the body has such a field.
    """

    name: str
    model: type[BaseModel]
    left_out: BaseModel | None
    items: tuple[str, type[BaseModel]] | None

    def read(self, raw: bytes, check: Check | None = None) -> BaseModel:
        if not raw:
            if self.left_out is None:
                raise InvalidInput([FieldError(("body",), "is missing: a JSON object is needed")])
            return self.left_out
        if self.left_out is not None and request_body.is_null(raw):
            return self.left_out
        given = request_body.parse_object(raw)
        if check is not None:
            check.value(given)
        if len(raw) > PARSED_IN_THE_LOOP_BYTES:
            self._validate_items(given)
        try:
            return self.model.model_validate(given)
        except ValidationError as error:
            raise InvalidInput(faults_of(error, "body", given)) from error

    def _validate_items(self, given: dict[str, Any]) -> None:
        """Put models in place of the valid items of a large body, one at a time.

        All items in one call of pydantic would keep the interpreter's lock from the event loop for too long when each
        has many faults. Those of the items that are left are found when the whole body is validated.
        """
        if self.items is None:
            return
        name, model = self.items
        items = given.get(name)
        if not isinstance(items, list) or len(items) > limits.BATCH_MAX:
            return
        faults = 0
        for index, item in enumerate(items):
            try:
                items[index] = model.model_validate(item)
            except ValidationError as error:
                faults += error.error_count()
                if faults > FAULTS_MAX:
                    text = f"has more than {FAULTS_MAX} values that are refused, too many to name"
                    raise InvalidInput([FieldError(("body",), text)]) from None


def _list_of_models(model: type[BaseModel]) -> tuple[str, type[BaseModel]] | None:
    for name, field in model.model_fields.items():
        of = get_args(field.annotation)
        if get_origin(field.annotation) is list and isinstance(of[0], type) and issubclass(of[0], BaseModel):
            return name, of[0]
    return None


class Check(Protocol):
    """What else a call must pass; each step raises a DeferdError to refuse it."""

    def body(self, raw: bytes) -> None:
        """Check the body as it came."""

    def value(self, value: dict[str, Any]) -> None:
        """Check the parsed body; of a large one this runs in another thread."""

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
                self._body = _Body(name, bare, left_out, _list_of_models(bare))
            elif bare is Call:
                self._call_name = name
            else:
                raise TypeError(f"{endpoint}: nothing of a request can be bound to {name}")

    def _record_admin_actions(self) -> None:
        if self.need.scope is Scope.ADMIN and self.methods != {"GET"}:
            if self._call_name is None:
                raise TypeError(f"{self.endpoint}: an admin call needs its Call, for the audit log")
            self.endpoint = audit_log.recorded(self.endpoint, self._call_name, self.what)

    async def answer(self, call: Call, check: Check | None = None) -> Response:
        """Answer `call`; `check` is shown the body and the bound arguments before, and may raise to refuse them.

        Raises InvalidInput for what does not fit the signature, else what `check` or the function raises.
        """
        arguments: dict[str, Any] = {}
        faults: list[FieldError] = []
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
            if len(raw) <= PARSED_IN_THE_LOOP_BYTES:
                arguments[self._body.name] = self._body.read(raw, check)
            else:
                loop = asyncio.get_running_loop()
                arguments[self._body.name] = await loop.run_in_executor(_large_bodies, self._body.read, raw, check)
        if self._call_name is not None:
            arguments[self._call_name] = call
        if check is not None:
            check.arguments(arguments)
        answer: Response = await self.endpoint(**arguments)
        return answer

    def _bind_path(self, given: dict[str, str], arguments: dict[str, Any], faults: list[FieldError]) -> None:
        for name, validate in self._path_values:
            try:
                arguments[name] = validate(given[name])
            except ValidationError as error:
                faults.extend(
                    FieldError(("path", name), fault.message, given[name]) for fault in faults_of(error, "path", given)
                )

    def _bind_query(self, query_string: bytes, arguments: dict[str, Any], faults: list[FieldError]) -> None:
        given = _query_values(query_string, faults)
        if self._query_model is None:
            faults.extend(FieldError(("query", name), "is not a known parameter") for name in given)
            return
        name, model = self._query_model
        try:
            arguments[name] = model.model_validate_strings(given)
        except ValidationError as error:
            faults.extend(faults_of(error, "query", given))


def _query_values(query_string: bytes, faults: list[FieldError]) -> dict[str, str]:
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
        faults.append(FieldError(("query",), "must be UTF-8"))
        return values
    except ValueError:
        faults.append(FieldError(("query",), f"must have at most {_QUERY_PARAMETERS_MAX} parameters"))
        return values
    for name, value in pairs:
        if name in values:
            faults.append(FieldError(("query", name), "is given more than once", value))
        values[name] = value
    return values
