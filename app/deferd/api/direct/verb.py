"""What the direct paths of all verbs share: which requests they take, and how these are admitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from re import Match
from typing import Any, ClassVar

from deferd.api.auth.admission import Admission
from deferd.api.context import AppContext
from deferd.api.direct.call import Connection, DirectCall
from deferd.api.operation import OperationRoute
from deferd.api.responses import Header
from deferd.contract import limits
from deferd.contract.operations.operation import Operation

TOPIC = limits.TOPIC_PATTERN.strip("^$")
ID = limits.ID_PATTERN.strip("^$")


class KnownHead:
    """The headers of a request, without its first line. Clients send the same ones each time."""

    __slots__ = ("admissions", "headers")

    def __init__(self, headers: list[Header]) -> None:
        self.headers = headers
        self.admissions: dict[DirectVerb, Admission] = {}
        """Of a service without keys, where they depend on nothing else."""


class DirectVerb(ABC):
    """The direct path of an operation, or of several.

    `query` is the pattern of what may follow the path in the first line of a request.
    """

    operations: ClassVar[tuple[Operation[Any], ...]]
    query: ClassVar = ""
    has_same_lines: ClassVar = False
    """Clients send the same first lines again and again."""

    @classmethod
    def line_of(cls, operation: Operation[Any]) -> str:
        """The pattern of the first lines, without the HTTP version, of requests that may take the path."""
        return f"{operation.method} {operation.path.format(topic=f'({TOPIC})', id=f'({ID})')}{cls.query}"

    def __init__(self, app: AppContext, operation: OperationRoute) -> None:
        self._app = app
        self._operation = operation
        self._method = next(iter(operation.methods or ()))

    @abstractmethod
    def begin(self, connection: Connection, head: KnownHead, line: Match[str], body: bytes) -> DirectCall | None:
        """Begin the call; `line` is the match of its first line. None, without any effect: it goes the general way."""

    @staticmethod
    def _path_values(line: Match[str], count: int) -> tuple[str, ...]:
        """What the first groups of the pattern of the line matched."""
        at = line.lastindex or 0  # the group around the pattern
        return line.group(*range(at + 1, at + 1 + count))

    def _admitted(self, connection: Connection, head: KnownHead, topic: str) -> DirectCall | None:
        """The call, when its request is admitted; None when that is not certain or depends on limits of its key."""
        admission = head.admissions.get(self)
        if admission is None:
            gate = self._app.gate
            admission = gate.admit_without_limits(self._operation.permission, self._method, head.headers, topic)
            if admission is None:
                return None
            if not gate.has_keys:
                head.admissions[self] = admission
        return DirectCall(connection, self._operation, self._method, admission.key_name)
