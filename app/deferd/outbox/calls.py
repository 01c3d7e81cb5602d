"""The calls of an application, in a transaction of its own database, which commits them with its rows.

Each runs one statement: a call of the SQL function with the same name, which writes a row into the outbox.
`deferd relay` sends the row to the service when the transaction has committed, and a rollback takes it away. A value
out of its bounds is refused before the database sees it, with the error that the client has for it.

The first argument is a connection of SQLAlchemy 2 (Session, Connection, AsyncSession, AsyncConnection), psycopg 3
(Connection, AsyncConnection, or a cursor, which then has no rows of an earlier query), asyncpg or Django
(`django.db.connection`, `connections["name"]`). With an asynchronous one the call returns a coroutine. No driver is
imported: the class of the connection says whose it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Unpack, overload

from deferd.client.job_requests import with_id
from deferd.client.policy_options import PolicyOptions
from deferd.client.put_options import PutOptions, check_body, check_put, set_options
from deferd.client.request_body import Seconds, as_json, encode, job_fields
from deferd.contract.bulk_model import CancelSelected
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.model import CancelItem, ChangeJob

if TYPE_CHECKING:
    from deferd.client.cipher import Cipher

Value = TypeVar("Value")
_NO_APPEND = (
    "must be `keep`, `replace` or `reject` in the outbox: a relay that ends between the call and the deletion of its "
    "row makes the call again, and would append the body twice"
)
_NAMES = {"topic": "text", "id": "text"}
_FIELDS = {"body": "jsonb", "delay": "interval", "run_at": "timestamptz", "fields": "jsonb"}
_PARAMETERS: dict[str, dict[str, str]] = {
    "put": _NAMES | _FIELDS,
    "cancel": _NAMES | {"if_reserved": "text", "follow_up": "text"},
    "reschedule": _NAMES | _FIELDS,
    "cancel_tag": {"tag": "text", "if_reserved": "text"},
}
"""The parameters of the SQL functions that this uses, with their types. Most fields go into the JSON of `fields`."""
_MARKS: dict[str, Callable[[int, str], str]] = {
    "sqlalchemy": lambda _, name: f":{name}",
    "psycopg": lambda _number, _name: "%s",
    "asyncpg": lambda number, _: f"${number}",
    "django": lambda _number, _name: "%s",
}
"""How the statements of each driver mark a parameter."""


def _statement(function: str, mark: Callable[[int, str], str]) -> str:
    """The same for every call, so that drivers prepare it once. Values are text, which all drivers send alike."""
    arguments = [
        f"{name} => CAST(CAST({mark(number, name)} AS text) AS {type_name})"
        for number, (name, type_name) in enumerate(_PARAMETERS[function].items(), 1)
    ]
    return f"SELECT deferd.{function}({', '.join(arguments)})"


_STATEMENTS = {
    (driver, function): _statement(function, mark) for driver, mark in _MARKS.items() for function in _PARAMETERS
}


class _Rows(Protocol):
    def fetchone(self) -> Any: ...


class _Executes(Protocol):
    """A Session or Connection of SQLAlchemy, a Connection or Cursor of psycopg."""

    @property
    def execute(self) -> Callable[..., _Rows]: ...


class _HasCursors(Protocol):
    """A connection of Django."""

    @property
    def cursor(self) -> Callable[..., Any]: ...

    @property
    def alias(self) -> str: ...


class _ExecutesAsync(Protocol):
    """An AsyncSession or AsyncConnection of SQLAlchemy, an AsyncConnection or AsyncCursor of psycopg, or of asyncpg."""

    @property
    def execute(self) -> Callable[..., Awaitable[Any]]: ...


Blocking = _Executes | _HasCursors
Asynchronous = _ExecutesAsync
IfReserved = Literal["cancel", "refuse"]
FollowUp = Literal["cancel", "keep"]


class Changes(PolicyOptions, total=False):
    """The arguments of `Client.change`, all keyword-only. What is left out stays as it is."""

    delay: Seconds | None
    """Time from now until the job is due."""
    run_at: datetime | None
    """When the job is due, instead of `delay`."""
    body: Any
    """The new body; None is a body, too."""
    tags: Sequence[str] | None
    """In place of all earlier ones; an empty list removes them."""
    headers: Mapping[str, str] | None
    """In place of all earlier ones; an empty mapping removes them."""
    group: str | None
    """The new group; an empty text removes that of the job."""
    priority: int | None
    """The new priority; 0 removes that of the job."""


@overload
def put(
    connection: Asynchronous,
    topic: str,
    body: Any = None,
    *,
    cipher: Cipher | None = None,
    **options: Unpack[PutOptions],
) -> Coroutine[Any, Any, str]: ...
@overload
def put(
    connection: Blocking,
    topic: str,
    body: Any = None,
    *,
    cipher: Cipher | None = None,
    **options: Unpack[PutOptions],
) -> str: ...
def put(
    connection: Any, topic: str, body: Any = None, *, cipher: Cipher | None = None, **options: Unpack[PutOptions]
) -> Any:
    """Put a job when the transaction of `connection` commits. Returns its id.

    ::

        with Session(engine) as session, session.begin():
            session.add(Order(number="1042"))
            outbox.put(session, "orders.close", {"order": "1042"}, id="1042", delay=timedelta(minutes=30))

        async with async_session.begin() as session:
            await outbox.put(session, "orders.close", {"order": "1042"}, id="1042", delay=timedelta(minutes=30))

    The options are those of `Client.put`, but `on_conflict` is `keep` where nothing else is said, and cannot be
    `append`. The time of `delay` begins now, not when the transaction commits or the relay sends the job. A job
    definition brings its topic and options: ``outbox.put(session, **close.fields(order, id="1042"))``. What only the
    service can refuse goes to the refused rows: see `deferd outbox refused`. With a `cipher` the row has an encrypted
    body; relay and service need no keys.

    Raises:
        TypeError: an option is unknown, or `connection` is not of a driver that this knows.
        InvalidInput: a value is out of its bounds, both `delay` and `run_at` are given, or `on_conflict` is `append`.
    """
    fields = as_json(job_fields(with_id({"topic": topic, "body": body, **set_options(options)})))
    fields.setdefault("on_conflict", "keep")
    check_put(fields)
    fields = _encrypted(fields, topic, cipher)
    if fields["on_conflict"] == "append":
        raise InvalidInput([FieldError(("body", "on_conflict"), _NO_APPEND, "append")])
    return _call(connection, "put", fields, fields["id"])


@overload
def cancel(
    connection: Asynchronous, topic: str, id: str, *, if_reserved: IfReserved = ..., follow_up: FollowUp = ...
) -> Coroutine[Any, Any, None]: ...
@overload
def cancel(
    connection: Blocking, topic: str, id: str, *, if_reserved: IfReserved = ..., follow_up: FollowUp = ...
) -> None: ...
def cancel(
    connection: Any, topic: str, id: str, *, if_reserved: IfReserved = "cancel", follow_up: FollowUp = "cancel"
) -> Any:
    """Cancel a job when the transaction of `connection` commits, with the options of `Client.cancel`.

    A job that does not exist then is none to cancel: that is no error. A put of the same id that committed earlier is
    sent earlier, or not at all.

    Raises:
        TypeError: `connection` is not of a driver that this knows.
        InvalidInput: a value is out of its bounds.
    """
    fields = {"id": id, "if_reserved": if_reserved, "follow_up": follow_up}
    check_body(CancelItem, fields)
    check_put({"topic": topic})
    return _call(connection, "cancel", {"topic": topic, **fields}, None)


@overload
def reschedule(
    connection: Asynchronous, topic: str, id: str, *, cipher: Cipher | None = None, **changes: Unpack[Changes]
) -> Coroutine[Any, Any, None]: ...
@overload
def reschedule(
    connection: Blocking, topic: str, id: str, *, cipher: Cipher | None = None, **changes: Unpack[Changes]
) -> None: ...
def reschedule(
    connection: Any, topic: str, id: str, *, cipher: Cipher | None = None, **changes: Unpack[Changes]
) -> Any:
    """Reschedule or change a job when the transaction of `connection` commits, with the arguments of `Client.change`.

    A job that is reserved, dead, finished or gone by then stays as it is, without an error: the relay notes it in its
    debug log. A `cipher` encrypts a new body.

    Raises:
        TypeError: an option is unknown, or `connection` is not of a driver that this knows.
        InvalidInput: a value is out of its bounds, or both `delay` and `run_at` are given.
    """
    fields = set_options(changes, Changes)
    if "body" in changes:
        fields["body"] = changes["body"]
    if "group" in fields:
        fields["group"] = fields["group"] or None
    fields = as_json(job_fields(fields))
    check_body(ChangeJob, fields)
    check_put({"topic": topic, "id": id})
    fields = _encrypted(fields, topic, cipher)
    return _call(connection, "reschedule", {"topic": topic, "id": id, **fields}, None)


@overload
def cancel_tag(connection: Asynchronous, tag: str, *, if_reserved: IfReserved = ...) -> Coroutine[Any, Any, None]: ...
@overload
def cancel_tag(connection: Blocking, tag: str, *, if_reserved: IfReserved = ...) -> None: ...
def cancel_tag(connection: Any, tag: str, *, if_reserved: IfReserved = "cancel") -> Any:
    """Cancel the jobs with this tag, in all topics, when the transaction of `connection` commits.

    Those of the outbox that committed earlier are among them.

    Raises:
        TypeError: `connection` is not of a driver that this knows.
        InvalidInput: a value is out of its bounds.
    """
    check_body(CancelSelected, {"select": {"tag": tag}, "if_reserved": if_reserved})
    return _call(connection, "cancel_tag", {"tag": tag, "if_reserved": if_reserved}, None)


def _encrypted(fields: dict[str, Any], topic: str, cipher: Cipher | None) -> dict[str, Any]:
    """A put or a change with what the cipher encrypts. Raises InvalidInput if its headers are too long then."""
    if cipher is None or not cipher.is_for(topic):
        return fields
    fields = dict(fields)
    if "body" in fields:
        fields["body"] = cipher.encrypt(fields["body"], topic=topic)
    if cipher.headers and fields.get("headers"):
        headers = fields["headers"].items()
        fields["headers"] = {name: cipher.encrypt(text, topic=topic, part=f"header:{name}") for name, text in headers}
        check_body(ChangeJob, {"headers": fields["headers"]})
    return fields


def _call(connection: Any, function: str, given: dict[str, Any], result: Value) -> Any:
    """Call an SQL function. `result` is what the caller gets, after an `await` if the connection is asynchronous."""
    started = _execute(connection, function, _arguments(function, given))
    return _after(started, result) if isawaitable(started) else result


async def _after(started: Awaitable[Any], result: Value) -> Value:
    await started
    return result


def _arguments(function: str, given: dict[str, Any]) -> dict[str, str | None]:
    """The arguments of the SQL function, as text. What has no parameter of its own goes into `fields`."""
    named = {name: given.pop(name) for name in _PARAMETERS[function] if name in given}
    if given:
        named["fields"] = given
    for name, type_name in _PARAMETERS[function].items():
        if name in named and type_name == "jsonb":
            named[name] = encode(named[name]).decode()
    if "delay" in named:
        named["delay"] = f"{named['delay']:f} seconds"
    return dict.fromkeys(_PARAMETERS[function]) | named


def _execute(connection: Any, function: str, arguments: dict[str, str | None]) -> Any:
    """Run the statement. Returns something to await if the connection is asynchronous."""
    driver = _driver_of(connection)
    statement = _STATEMENTS[driver, function]
    if driver == "sqlalchemy":
        return connection.execute(importlib.import_module(driver).text(statement), arguments)
    if driver == "django":
        with connection.cursor() as cursor:
            return cursor.execute(statement, list(arguments.values()))
    if driver == "asyncpg":
        return connection.execute(statement, *arguments.values())
    return connection.execute(statement, list(arguments.values()))


def _driver_of(connection: Any) -> str:
    """The package of the class, or of one that it derives from. Raises TypeError."""
    for one in type(connection).__mro__:
        package = one.__module__.partition(".")[0]
        if package in _MARKS and hasattr(connection, "cursor" if package == "django" else "execute"):
            return package
    raise TypeError(
        f"{connection!r} is not a connection that deferd.outbox knows: it must be a Session or Connection of "
        "SQLAlchemy, a Connection or cursor of psycopg 3, a Connection of asyncpg, or a connection of Django"
    )
