"""What a call needs of the key that it comes with, said beside the call.

::

    @router.post("/jobs", ...)
    @needs(Scope.PUT, topics=lambda given: (given["job"].topic,))
    async def put_job(call: CurrentCall, job: PutJob) -> Response

A function that says nothing cannot become an operation, so no call is open by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from deferd.api.auth.api_keys import Key, Scope

Arguments = Mapping[str, Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _of_the_path(given: Arguments) -> Collection[str]:
    """The topic of the path, of a pop all that it names; none where the path has no topic."""
    named: str | None = given.get("topic")
    return () if named is None else named.split(",")


@dataclass(frozen=True, slots=True)
class Need:
    """`scope` None: anybody may. `topics` gives the topics of a call from its bound arguments; the key must be for
    each of them, and with `all_topics` for every topic that there can be.
    """

    scope: Scope | None
    topics: Callable[[Arguments], Collection[str]] = _of_the_path
    all_topics: bool = False

    def topic_out_of_reach(self, key: Key, given: Arguments) -> str | None:
        """The first topic of a call that `key` is not for; None when it is for all."""
        if key.topics.everything:
            return None
        if self.all_topics:
            return "*"
        return next((topic for topic in self.topics(given) if not key.topics.match(topic)), None)


_needs: dict[Callable[..., Any], Need] = {}


def needs(
    scope: Scope, *, topics: Callable[[Arguments], Collection[str]] = _of_the_path, all_topics: bool = False
) -> Callable[[_Function], _Function]:
    """The call needs a key with `scope`; see Need."""
    return _noting(Need(scope, topics, all_topics))


def open_to_all(function: _Function) -> _Function:
    """The call needs no key."""
    return _noting(Need(None))(function)


def _noting(need: Need) -> Callable[[_Function], _Function]:
    def note(function: _Function) -> _Function:
        _needs[function] = need
        return function

    return note


def need_of(function: Callable[..., Any]) -> Need:
    """What was said of `function`. Raises TypeError when nothing was."""
    try:
        return _needs[function]
    except KeyError:
        raise TypeError(f"{function}: say what key it needs, with @needs or @open_to_all") from None
