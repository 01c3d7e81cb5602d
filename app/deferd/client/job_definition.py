"""Job definitions: the topic, the body's type and the default options of a job, said once for producer and consumer.

A definition belongs to no client, so the module that declares it can be imported by both sides. `JobDefinition.bind`
gives it one, and its type then follows from the client's: with a Client `put` returns a Job, with an AsyncClient it
returns a coroutine. There is deliberately no default client in the background: a program with two services, a test and
a second event loop would all have to know about it.
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

from deferd.client.jobs import Cancelled, Job
from deferd.client.put_options import PutDefaults, PutOptions, check_put, field_faults, given_options
from deferd.client.requests import as_json, job_fields
from deferd.contract.errors import FieldError, InvalidInput

Body = TypeVar("Body")
Put_co = TypeVar("Put_co", covariant=True)
Cancel_co = TypeVar("Cancel_co", covariant=True)


class _Client(Protocol[Put_co, Cancel_co]):
    """What a bound definition needs of a client: Client and AsyncClient have it."""

    def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> Put_co: ...

    def cancel(self, topic: str, id: str, *, if_reserved: Literal["cancel", "refuse"] = "cancel") -> Cancel_co: ...


class _HasBody(Protocol):
    @property
    def body(self) -> Any: ...


@dataclass(frozen=True, eq=False, slots=True)
class JobDefinition(Generic[Body]):
    """A kind of job: its topic, the type of its body and the defaults of its puts. `job` makes it."""

    topic: str
    body_type: Any
    """The type, as it was given to `job`."""
    defaults: Mapping[str, Any]
    """The options that each put has unless it says otherwise, as JSON."""
    adapter: TypeAdapter[Body] = field(repr=False)
    """Validates a body and writes it as JSON."""

    def bind(self, client: _Client[Put_co, Cancel_co]) -> BoundJob[Body, Put_co, Cancel_co]:
        """This definition with the client that puts its jobs: a Client, an AsyncClient, or one of an EagerJobs."""
        return BoundJob(self, client)

    def fields(self, body: Body, **options: Unpack[PutOptions]) -> dict[str, Any]:
        """A job with this body as the arguments of a put, for `put_many` and `buffer.put`.

        ::

            client.put_many(close.fields(order, id=order.number) for order in orders)
            buffer.put(**close.fields(order))

        The body is validated, written as JSON and read back, so that what the consumer could not read is found here.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: the body is not of the definition's type, or cannot be written as JSON and read back.
        """
        given = given_options(options)
        defaults = copy.deepcopy(dict(self.defaults))
        if "run_at" in given and "delay" not in given:
            defaults.pop("delay", None)
        return {"topic": self.topic, "body": self._as_json(body), **defaults, **given}

    def read(self, job: _HasBody) -> Body:
        """The body of a job as the definition's type, for consumers that pop by themselves. Raises InvalidInput."""
        try:
            return self.adapter.validate_json(to_json(job.body))
        except ValidationError as error:
            raise InvalidInput(field_faults(error)) from None

    def _as_json(self, body: Body) -> Any:
        try:
            valid = self.adapter.validate_python(body)
            _check_finite(self.adapter.dump_python(valid, by_alias=True, warnings="none"), ("body",))
            written = self.adapter.dump_json(valid, by_alias=True, warnings="none")
            self.adapter.validate_json(written)
        except ValidationError as error:
            raise InvalidInput(field_faults(error)) from None
        except (PydanticSerializationError, RecursionError) as error:
            raise InvalidInput([FieldError(("body",), f"cannot be written as JSON: {error}")]) from error
        return from_json(written)


def _check_finite(value: Any, at: tuple[str | int, ...]) -> None:
    """Raise InvalidInput when there is a number in `value` that JSON has not: it would be written as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput([FieldError(at, f"is {value}, which JSON has no number for")])
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(item, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_finite(item, (*at, index))


class BoundJob(Generic[Body, Put_co, Cancel_co]):
    """A job definition with the client that puts its jobs. `JobDefinition.bind` makes it.

    `put` and `cancel` return what the client's return: a Job and a Cancelled, or coroutines of these.
    """

    def __init__(self, definition: JobDefinition[Body], client: _Client[Put_co, Cancel_co]) -> None:
        self.definition = definition
        self._client = client

    def put(self, body: Body, **options: Unpack[PutOptions]) -> Put_co:
        """Put a job with this body. The options are those of `Client.put` and override the definition's defaults.

        Raises:
            InvalidInput: the body is not of the definition's type, or cannot be written as JSON and read back. Nothing
                was sent.
            DeferdError: as `Client.put`.
        """
        return self._client.put(**self.definition.fields(body, **options))

    def cancel(self, id: str, *, if_reserved: Literal["cancel", "refuse"] = "cancel") -> Cancel_co:
        """Cancel the job of this id. Raises as `Client.cancel`."""
        return self._client.cancel(self.definition.topic, id, if_reserved=if_reserved)


BlockingJob = BoundJob[Body, Job, Cancelled]
"""A definition that is bound to a Client, for annotations: ``BlockingJob[Order]``."""
AsyncJob = BoundJob[Body, Coroutine[Any, Any, Job], Coroutine[Any, Any, Cancelled]]
"""A definition that is bound to an AsyncClient, for annotations: ``AsyncJob[Order]``."""


@overload
def job(topic: str, body: type[Body], **defaults: Unpack[PutDefaults]) -> JobDefinition[Body]: ...
@overload
def job(topic: str, body: Any, **defaults: Unpack[PutDefaults]) -> JobDefinition[Any]: ...
def job(topic: str, body: Any, **defaults: Unpack[PutDefaults]) -> JobDefinition[Any]:
    """Define a kind of job, in one place for the program that puts it and the one that handles it.

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
    options of `Client.put`, without `id`, `run_at` and `traceparent`, for all jobs of this definition; each put may
    override them; `delay=0` lifts a default delay. They travel with the job: the topic's settings are not changed.

    A put validates the body before anything is sent. A consumer validates it again, since other programs may put into
    the topic: a body that does not fit goes to dead with the reason, because another try could not help.

    Raises:
        InvalidInput: the topic's name or a default is out of its bounds.
        TypeError: an option is unknown or not allowed here, or `body` is not a type that pydantic can validate.
    """
    given = as_json(job_fields(given_options(defaults, PutDefaults)))
    try:
        adapter = TypeAdapter[Any](body)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise TypeError(f"the body of job {topic!r} is {body!r}, which pydantic cannot validate: {reason}") from error
    check_put({"topic": topic, **given})
    return JobDefinition(topic, body, MappingProxyType(given), adapter)
