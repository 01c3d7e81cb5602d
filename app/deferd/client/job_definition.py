"""Job definitions: the topic, the body's type and the default options of a job, declared once for both sides.

A definition has no client, so producers and consumers can import the module that declares it. `JobDefinition.bind`
adds a client, which decides the types: with a Client `put` returns a Job, with an AsyncClient a coroutine. There is no
global default client on purpose: programs with two services, tests and second event loops would have to work around it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json

from deferd.client.job_requests import with_id
from deferd.client.put_options import PutDefaults, PutOptions, body_errors, check_put, set_options
from deferd.client.request_body import as_json, job_fields
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.operations.jobs import Cancelled, Job

Body = TypeVar("Body")
Put_co = TypeVar("Put_co", covariant=True)
Cancel_co = TypeVar("Cancel_co", covariant=True)


class _Client(Protocol[Put_co, Cancel_co]):
    """What a bound definition needs from a client: Client and AsyncClient provide it."""

    def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> Put_co: ...

    def cancel(
        self,
        topic: str,
        id: str,
        *,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        follow_up: Literal["cancel", "keep"] = "cancel",
    ) -> Cancel_co: ...


class _HasBody(Protocol):
    @property
    def body(self) -> Any: ...


@dataclass(frozen=True, eq=False, slots=True)
class JobDefinition(Generic[Body]):
    """A kind of job: its topic, the type of its body and the default options of its puts. Made by `job`."""

    topic: str
    body_type: Any
    """The type that was passed to `job`."""
    defaults: Mapping[str, Any]
    """The default options of a put, as JSON."""
    adapter: TypeAdapter[Body] = field(repr=False)
    """Validates bodies and writes them as JSON."""

    def bind(self, client: _Client[Put_co, Cancel_co]) -> BoundJob[Body, Put_co, Cancel_co]:
        """This definition with the client that puts its jobs: a Client, an AsyncClient, or a client of EagerJobs."""
        return BoundJob(self, client)

    def fields(self, body: Body, **options: Unpack[PutOptions]) -> dict[str, Any]:
        """The arguments to put a job with this body, for `put` and `put_many`.

        ::

            client.put_many(close.fields(order, id=order.number) for order in orders)
            client.put(**close.fields(order))

        The body is validated, written as JSON and parsed again, so that a body the consumer could not parse fails here.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: the body is not of the definition's type, or cannot be written as JSON and parsed again.
        """
        overrides = set_options(options)
        defaults = copy.deepcopy(dict(self.defaults))
        if "run_at" in overrides and "delay" not in overrides:
            defaults.pop("delay", None)
        return {"topic": self.topic, "body": self._as_json(body), **defaults, **overrides}

    def to_json(self, body: Body, **options: Unpack[PutOptions]) -> str:
        """The put of a job with this body as a JSON object: the body of `POST /jobs`, a line for `deferd put -`.

        For programs that put later or elsewhere, such as from an outbox: `client.put(**json.loads(text))`. Without an
        `id` it has a new one, so that putting it twice is one job.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: as `fields`, or an option is out of its bounds.
        """
        fields = as_json(job_fields(with_id(self.fields(body, **options))))
        check_put(fields)
        return to_json(fields).decode()

    def read(self, job: _HasBody) -> Body:
        """The body of a job as the definition's type, for consumers without a Worker. Raises InvalidInput."""
        try:
            return self.adapter.validate_json(to_json(job.body))
        except ValidationError as error:
            raise InvalidInput(body_errors(error)) from None

    def _as_json(self, body: Body) -> Any:
        try:
            valid = self.adapter.validate_python(body)
            _check_finite(self.adapter.dump_python(valid, by_alias=True, warnings="none"), ("body",))
            written = self.adapter.dump_json(valid, by_alias=True, warnings="none")
            self.adapter.validate_json(written)
        except ValidationError as error:
            raise InvalidInput(body_errors(error)) from None
        except (PydanticSerializationError, RecursionError) as error:
            raise InvalidInput([FieldError(("body",), f"cannot be written as JSON: {error}")]) from error
        return from_json(written)


def _check_finite(value: Any, at: tuple[str | int, ...]) -> None:
    """Raise InvalidInput if `value` contains NaN or an infinity, which would be written as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput([FieldError(at, f"is {value}, which JSON cannot represent")])
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(item, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_finite(item, (*at, index))


class BoundJob(Generic[Body, Put_co, Cancel_co]):
    """A job definition with the client that puts its jobs. Made by `JobDefinition.bind`.

    `put` and `cancel` return what those of the client return: a Job and a Cancelled, or coroutines.
    """

    def __init__(self, definition: JobDefinition[Body], client: _Client[Put_co, Cancel_co]) -> None:
        self.definition = definition
        self._client = client

    def put(self, body: Body, **options: Unpack[PutOptions]) -> Put_co:
        """Put a job with this body. The options are those of `Client.put` and override the definition's defaults.

        Raises:
            InvalidInput: the body is not of the definition's type, or cannot be written as JSON and parsed again.
                Nothing was sent.
            DeferdError: as `Client.put`.
        """
        return self._client.put(**self.definition.fields(body, **options))

    def cancel(
        self,
        id: str,
        *,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        follow_up: Literal["cancel", "keep"] = "cancel",
    ) -> Cancel_co:
        """Cancel the job of this id. Options and errors are those of `Client.cancel`."""
        return self._client.cancel(self.definition.topic, id, if_reserved=if_reserved, follow_up=follow_up)


BlockingJob = BoundJob[Body, Job, Cancelled]
"""A definition bound to a Client, for annotations: ``BlockingJob[Order]``."""
AsyncJob = BoundJob[Body, Coroutine[Any, Any, Job], Coroutine[Any, Any, Cancelled]]
"""A definition bound to an AsyncClient, for annotations: ``AsyncJob[Order]``."""


@overload
def job(topic: str, body: type[Body], **defaults: Unpack[PutDefaults]) -> JobDefinition[Body]: ...
@overload
def job(topic: str, body: Any, **defaults: Unpack[PutDefaults]) -> JobDefinition[Any]: ...
def job(topic: str, body: Any, **defaults: Unpack[PutDefaults]) -> JobDefinition[Any]:
    """Define a kind of job, once for the program that puts it and the one that handles it.

    ::

        class Order(BaseModel):
            number: int

        close = job("orders.close", Order, delay=timedelta(minutes=30), max_attempts=5)

        close_order = close.bind(client)                    # the producer
        close_order.put(Order(number=1042), id="order-1042")
        close_order.cancel("order-1042")

        @worker.handler(close)                              # the consumer
        async def close_unpaid(order: Order) -> None: ...

    `body` is a pydantic model, dataclass, TypedDict or any other type that pydantic can validate. `defaults` are
    options of `Client.put`, except `id`, `run_at` and `traceparent`, for all jobs of this definition; each put may
    override them (`delay=0` for a default delay). They are sent with each job and do not change the topic's settings.

    A put validates the body before it is sent. The consumer validates it again, because other programs may put into the
    topic: a body that is invalid makes the job dead, with the reason, because a retry could not succeed.

    Raises:
        InvalidInput: the topic's name or a default is out of its bounds.
        TypeError: an option is unknown or not allowed here, or `body` is not a type that pydantic can validate.
    """
    fields = as_json(job_fields(set_options(defaults, PutDefaults)))
    try:
        adapter = TypeAdapter[Any](body)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise TypeError(f"the body of job {topic!r} is {body!r}, which pydantic cannot validate: {reason}") from error
    check_put({"topic": topic, "id": "of-a-put", **fields})  # some defaults need one, which each put brings
    return JobDefinition(topic, body, MappingProxyType(fields), adapter)
