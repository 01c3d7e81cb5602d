"""What the direct paths of all verbs share: which requests they take, and how these are admitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import msgspec

from deferd.api.auth.admission import Admission
from deferd.api.context import AppContext
from deferd.api.direct.call import Connection, DirectCall
from deferd.api.operation import OperationRoute
from deferd.api.responses import Header
from deferd.contract import limits
from deferd.contract.errors import DeferdError
from deferd.contract.operations.operation import Operation

ID = limits.ID_PATTERN.strip("^$")
QUERY = r"(?:\?([!\x22$-~]*))?"
"""The pattern of a query, if there is one."""


class KnownHead:
    """The headers of a request, without its first line. Clients send the same ones each time."""

    __slots__ = ("admissions", "generation", "headers")

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = headers
        self.admissions: dict[DirectVerb, Admission] = {}
        """By the keys of this `generation`."""
        self.generation = 0


class DirectRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that may take a direct path.

    `values` are those of its path and query, '' for a part that it does not have; `traceparent` is its trace context,
    if it has one.
    """

    connection: Connection
    head: KnownHead
    values: tuple[str, ...]
    body: bytes
    traceparent: str | None


class DirectVerb(ABC):
    """The direct path of an operation, or of several.

    `topic` is the pattern of the topic in the path, `query` that of what may follow the path in the first line, and
    `values` how many groups these have together.
    """

    operations: ClassVar[tuple[Operation[Any], ...]]
    topic: ClassVar = limits.TOPIC_PATTERN.strip("^$")
    query: ClassVar = ""
    values: ClassVar = 2
    has_same_lines: ClassVar = False
    """Clients send the same first lines again and again."""

    @classmethod
    def line_of(cls, operation: Operation[Any]) -> str:
        """The pattern of the first lines, without the HTTP version, of requests that may take the path."""
        return f"{operation.method} {operation.path.format(topic=f'({cls.topic})', id=f'({ID})')}{cls.query}"

    def __init__(self, app: AppContext, operation: OperationRoute) -> None:
        self._app = app
        self._operation = operation
        self._method = next(iter(operation.methods or ()))

    def begin(self, request: DirectRequest) -> DirectCall | None:
        """Begin the call. None, without any effect: it goes the general way."""
        head, gate = request.head, self._app.gate
        if head.generation != gate.generation:
            head.admissions.clear()
            head.generation = gate.generation
        admission = head.admissions.get(self)
        if admission is None:
            admission = gate.find_admission(self._operation.permission, self._method, head.headers)
            if admission is None:
                return None
            head.admissions[self] = admission
        return self._begin(request, admission)

    @abstractmethod
    def _begin(self, request: DirectRequest, admission: Admission) -> DirectCall | None:
        """As `begin`, for a request whose topics and limits are still to be checked, by `_admitted`."""

    def _admitted(
        self,
        request: DirectRequest,
        admission: Admission,
        topics: str,
        held: AbstractContextManager[None] | None = None,
    ) -> DirectCall | None:
        """The call, when its key is for the topics and allows it, so that it counts; else None, without any effect.

        `held` is entered until the call ends; if that raises a DeferdError, the call is not allowed.
        """
        if admission.key is not None and not admission.may_use(topics):
            return None
        usage = admission.usage
        if usage is not None:
            try:
                usage.check_body(request.body)
                if usage.take() > 0:
                    return None
            except DeferdError:
                return None
            try:
                if held is not None:
                    held.__enter__()
            except DeferdError:
                usage.give_back()
                return None
        call = DirectCall(request.connection, self._operation, self._method, admission)
        if usage is not None:
            call.held = held
        return call
