"""The route class of all operations: it binds a request to the arguments of the operation's function.

A function declares its arguments in its signature, from which FastAPI generates the OpenAPI document when somebody
asks for it (`deferd.api.openapi.document`)::

    async def change_job(request: CurrentRequest, topic: Topic, id: JobId, change: ChangeJob) -> Response

The signature is read once, when the route is made. Each request is then bound in three steps: the parts of the path,
one model for all query parameters (`Annotated[Model, Query()]`), one model for the body. This takes a quarter of the
time of FastAPI's own binding and is strict in one place: what no model declares is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from fastapi import params
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.responses import Response
from starlette.routing import Route

from deferd.api import body_decoding, request_body, request_query
from deferd.api.auth.admission import WITHOUT_KEY, Admission
from deferd.api.auth.api_keys import Bounds, Permission
from deferd.api.context import RequestContext
from deferd.api.event_stream_response import EventStreamResponse
from deferd.api.request_body import PARSED_IN_THE_LOOP_BYTES
from deferd.api.responses import JsonResponse
from deferd.api.validation_errors import FIELD_ERRORS_MAX, field_errors
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.model import FinishBatch, PutBatch
from deferd.contract.operations import response as contract
from deferd.contract.operations.operation import Operation
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel
from deferd.engine.script_arguments import NO_BOUNDS, PutBounds
from deferd.engine.time_slice import TimeSlice

_READ_AT_ONCE_BYTES = 16 * 1024
"""Larger bodies wait for a turn of the event loop: several that arrive together would hold it for all of them."""
_large_bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
"""Parses large bodies. One thread: with several the event loop would wait longer for the interpreter's lock."""


class EmptyBody(StrictModel):
    """An empty object, `null`, or no body at all."""

    schema_examples = ({},)


EMPTY_BODY = EmptyBody()
_FAST_PATHS: dict[type[BaseModel], Callable[[bytes, PutBounds, Bounds], Any]] = {
    PutBatch: body_decoding.decode_batch,
    FinishBatch: body_decoding.decode_finishes,
}


class _Body(NamedTuple):
    """The argument for the body. `default` is its value for no body or `null`; None: an object is required.

    `items` is the field that holds a list of models, with the model, if the body has one. `decode` is the fast path for
    this model, if there is one: what it returns stands for the model; None when the body is unusual.
    """

    name: str
    model: type[BaseModel]
    default: BaseModel | None
    items: tuple[str, type[BaseModel]] | None
    decode: Callable[[bytes, PutBounds, Bounds], Any] | None = None

    def read(self, raw: bytes, admission: Admission = WITHOUT_KEY, bounds: PutBounds = NO_BOUNDS) -> Any:
        if self.decode is not None:
            decoded = self.decode(raw, bounds, admission.bounds)
            if decoded is not None:
                return decoded
        if not raw:
            if self.default is None:
                raise InvalidInput([FieldError(("body",), "is missing: a JSON object is needed")])
            return self.default
        if self.default is not None and request_body.is_null(raw):
            return self.default
        value = request_body.parse_object(raw)
        admission.check_value(value)
        if len(raw) > PARSED_IN_THE_LOOP_BYTES:
            self._validate_items(value)
        try:
            return self.model.model_validate(value)
        except ValidationError as error:
            shown_fields = getattr(self.model, "FIELDS_THAT_ERRORS_QUOTE", None)
            raise InvalidInput(field_errors(error, "body", value, shown_fields)) from error

    def _validate_items(self, value: dict[str, Any]) -> None:
        """Replace the valid items of a large body by models, one at a time.

        Validating all items in one call of pydantic would hold the interpreter's lock for too long when each has many
        errors. The errors of the other items are found when the whole body is validated.
        """
        if self.items is None:
            return
        name, model = self.items
        items = value.get(name)
        if not isinstance(items, list) or len(items) > limits.BATCH_MAX:
            return
        errors = 0
        for index, item in enumerate(items):
            try:
                items[index] = model.model_validate(item)
            except ValidationError as error:
                errors += error.error_count()
                if errors > FIELD_ERRORS_MAX:
                    text = f"has more than {FIELD_ERRORS_MAX} invalid values, too many to list"
                    raise InvalidInput([FieldError(("body",), text)]) from None


def _list_of_models(model: type[BaseModel]) -> tuple[str, type[BaseModel]] | None:
    for name, field in model.model_fields.items():
        item = get_args(field.annotation)
        if get_origin(field.annotation) is list and isinstance(item[0], type) and issubclass(item[0], BaseModel):
            return name, item[0]
    return None


class OperationRoute(Route):
    """A route whose requests are bound strictly and require a permission.

    `streams`: the response has no known length. `served_methods` are the methods of the route, and HEAD where GET
    has no effect (RFC 9110, section 9.1): a HEAD of a pop could only take jobs that nobody sees, or promise others.
    `responses` and `options` are for the OpenAPI document, see `OperationRouter.serves`, but `response_class` is for
    `streams`, too.
    """

    def __init__(
        self,
        operation: Operation[contract.Response],
        endpoint: Callable[..., Any],
        permission: Permission,
        responses: dict[int | str, dict[str, Any]],
        **options: Any,
    ) -> None:
        super().__init__(operation.path, endpoint, include_in_schema=options.get("include_in_schema", True))
        self.methods = {operation.method}  # the constructor would add HEAD to every GET
        self.operation = operation
        self.permission = permission
        self.responses, self.options = responses, options
        self._context_name: str | None = None
        self._path_values: list[tuple[str, Callable[[str], Any]]] = []
        self._query_model: tuple[str, type[BaseModel]] | None = None
        self._body: _Body | None = None
        self._read_signature(endpoint)
        self.streams = options.get("response_class") is EventStreamResponse
        head = {"HEAD"} if operation.method == "GET" and permission.scope is not Scope.POP else set()
        self.served_methods = frozenset(self.methods | head)

    @property
    def operation_id(self) -> str:
        """The name of the operation."""
        return self.operation.id

    @property
    def body_model(self) -> type[BaseModel] | None:
        """The model of the body, if the operation has one."""
        return None if self._body is None else self._body.model

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
                default = None if parameter.default is inspect.Parameter.empty else parameter.default
                self._body = _Body(name, bare, default, _list_of_models(bare), _FAST_PATHS.get(bare))
            elif bare is RequestContext:
                self._context_name = name
            else:
                raise TypeError(f"{endpoint}: nothing of a request can be bound to {name}")

    async def bind(self, context: RequestContext) -> dict[str, Any]:
        """The arguments of the operation's function, by name.

        Raises:
            InvalidInput: a part of the request does not fit the signature.
            PayloadTooLarge, UnsupportedMediaType: the body is refused, also by the checks of the request's admission.
            ClientDisconnect: the client disconnects before it has sent the whole body.
        """
        request, admission = context.incoming, context.admission
        arguments: dict[str, Any] = {}
        errors: list[FieldError] = []
        if self._path_values:
            self._bind_path(request.path_values, arguments, errors)
        if self._query_model is not None or request.query:
            self._bind_query(request.query, arguments, errors)
        if errors:
            raise InvalidInput(errors)
        if self._body is not None:
            raw = await request.read_body()
            admission.check_body(raw)
            bounds = context.put_bounds()
            if len(raw) <= PARSED_IN_THE_LOOP_BYTES:
                if len(raw) > _READ_AT_ONCE_BYTES:
                    await TimeSlice().start()
                arguments[self._body.name] = self._body.read(raw, admission, bounds)
            else:
                loop = asyncio.get_running_loop()
                value = await loop.run_in_executor(_large_bodies, self._body.read, raw, admission, bounds)
                arguments[self._body.name] = value
        if self._context_name is not None:
            arguments[self._context_name] = context
        return arguments

    async def run(self, arguments: dict[str, Any]) -> Response:
        """Call the operation's function, and write what it returns."""
        result = await self.endpoint(**arguments)
        return result if isinstance(result, Response) else JsonResponse(result)

    def _bind_path(self, values: dict[str, str], arguments: dict[str, Any], errors: list[FieldError]) -> None:
        for name, validate in self._path_values:
            try:
                arguments[name] = validate(values[name])
            except ValidationError as error:
                errors.extend(
                    FieldError(("path", name), one.message, values[name]) for one in field_errors(error, "path", values)
                )

    def _bind_query(self, query: bytes, arguments: dict[str, Any], errors: list[FieldError]) -> None:
        if self._query_model is None:
            request_query.refuse_parameters(query, errors)
            return
        name, model = self._query_model
        arguments[name] = request_query.read(query, model, errors)
