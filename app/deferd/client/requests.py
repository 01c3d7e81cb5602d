"""A request of the HTTP API: what to send, how to read the response, and whether it is repeatable.

An `ApiRequest` does no I/O, so the asyncio client and the blocking one share all of this and differ only in their
transport. The requests themselves are made where the methods of the clients are: see `deferd.client.api_methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from deferd.client import responses
from deferd.client.errors import UnexpectedAnswer
from deferd.client.response_reading import Read, read_nothing, reader_of
from deferd.contract.operations.health import CHECK_READINESS
from deferd.contract.operations.operation import Operation
from deferd.contract.responses.response import Response

Result = TypeVar("Result")
Value = TypeVar("Value")

_LONGEST_RETRY_S = 1_000_000_000
"""The value of a `Retry-After` with more digits: longer than any client waits."""


@dataclass(slots=True)  # frozen, it would take several times as long to make
class ApiRequest(Generic[Result]):
    """One request to the service. `read` turns the body of a successful response into the caller's result.

    `wait_s` is how long the service may take by design before it responds (a long poll). `success` are the statuses of
    success. `repeatable`: executing it twice does no harm, so it may be sent again when its response was lost.
    `asks_readiness`: it is sent even while the service is known not to respond. `headers` are sent with this request
    only.
    """

    method: str
    path: str
    read: Callable[[bytes], Result]
    query: Mapping[str, str | int | float] | None = None
    body: bytes | None = None
    wait_s: float = 0
    success: tuple[int, ...] = (200,)
    repeatable: bool = True
    asks_readiness: bool = False
    headers: Mapping[str, str] | None = None

    def read_response(
        self, status: int, content: bytes, retry_after: str | None = None, content_type: bytes = b"", *, url: str = ""
    ) -> Result:
        """The result for the caller. `retry_after` and `content_type` are the headers; the service is at `url`.

        Raises:
            DeferdError: the service refused; the error that it named.
            UnexpectedAnswer: the response is not one of a deferd service; the text has a short beginning of it.
        """
        where = f"{self.method} {url}{self.path}"
        if status not in self.success:
            raise responses.read_problem(status, content, _whole_seconds(retry_after), content_type, where)
        try:
            return self.read(content)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            text = responses.foreign(where, content, content_type, error)
            raise UnexpectedAnswer(status, text) from error

    def giving(self, part_of: Callable[[Result], Value]) -> ApiRequest[Value]:
        """This request, whose result is from now on a part of what it was."""
        request: ApiRequest[Any] = self
        read = request.read
        request.read = lambda content: part_of(read(content))
        return request

    def reading(self, read: Callable[[bytes], Value]) -> ApiRequest[Value]:
        """This request, whose response is from now on read in another way."""
        request: ApiRequest[Any] = self
        request.read = read
        return request


def request_for(
    operation: Operation[Read],
    *path_values: str,
    query: Mapping[str, str | int | float] | None = None,
    body: bytes | None = None,
    wait_s: float = 0,
    success: tuple[int, ...] | None = None,
    repeatable: bool | None = None,
    asks_readiness: bool = False,
    headers: Mapping[str, str] | None = None,
) -> ApiRequest[Read]:
    """A request of an operation of the contract: its result is the whole response.

    `path_values` are the topic, the id or what else the path has, in its order. None for `success` and
    `repeatable`: as the operation's row says. The rest is as in ApiRequest.
    """
    return ApiRequest(
        operation.method,
        operation.path_for(*path_values) if path_values else operation.path,
        reader_of(operation.response or cast("type[Read]", Response)),
        query,
        body,
        wait_s,
        (operation.status,) if success is None else success,
        operation.repeatable if repeatable is None else repeatable,
        asks_readiness,
        headers,
    )


def ready() -> ApiRequest[None]:
    """`GET /readyz`."""
    return request_for(CHECK_READINESS, asks_readiness=True).reading(read_nothing)


def _whole_seconds(retry_after: str | None) -> int | None:
    """`Retry-After` in seconds; its form as a date, which deferd does not send, is ignored."""
    if retry_after is None or not retry_after.isdecimal():
        return None
    return int(retry_after) if len(retry_after) < len(str(_LONGEST_RETRY_S)) else _LONGEST_RETRY_S
