"""Closed lists of values in responses, to which later services may add."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Self, TypeVar

_OPEN: ContextVar[bool] = ContextVar("deferd_open_enums", default=False)


class OpenEnum(StrEnum):
    """Has only the members that it lists, but in `later_members` one for any text.

    One unknown value must not make a whole page of jobs unreadable for a client that is older than its service.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not (_OPEN.get() and isinstance(value, str)):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value.upper(), value
        return member

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Unpickle one of a later service, too."""
        return open_member, (type(self), self.value)


Member = TypeVar("Member", bound=OpenEnum)


@contextmanager
def later_members() -> Iterator[None]:
    """Reads the values of later services."""
    token = _OPEN.set(True)
    try:
        yield
    finally:
        _OPEN.reset(token)


def open_member(kind: type[Member], value: str) -> Member:
    """The member of this value, also of a later service's."""
    with later_members():
        return kind(value)
