"""The audit log: a line for each admin action that was carried out and for each key that was refused.

Logger `deferd.audit`; as JSON the facts are fields of their own. Never a token: a key is told by its name, an unknown
one not at all. The client is the address that the connection came from, so behind a proxy it is the proxy's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from deferd.contract.errors import DeferdError, StoreUnavailable

if TYPE_CHECKING:
    from deferd.api.call import Call

_log = logging.getLogger("deferd.audit")
_SHOWN = 200
DONE, UNKNOWN = "done", "unknown"
WINDOW_S = 10.0
DISTINCT_MAX = 500


class Asked(NamedTuple):
    """What was asked: the call, the topic it is about if that is known, and the address that it came from."""

    what: str
    topic: str | None
    client: str | None


class Refusals:
    """The lines about keys that were refused, or not sent: so many that they cannot fill a disk soon.

    A refusal is told at once. The same one, of the same key for the same call and topic from the same address, is told
    again WINDOW_S seconds later with how often it came meanwhile. In that time at most DISTINCT_MAX different ones are
    told; for those beyond there is one line with their number.
    """

    def __init__(self) -> None:
        self._again: dict[tuple[str | None, Asked, str], int] = {}
        self._untold = 0
        self._end: asyncio.TimerHandle | None = None

    def note(self, key: str | None, asked: Asked, outcome: str) -> None:
        """A key was refused, or none that is known was sent (None); `outcome` is the code of the answer."""
        asked = asked._replace(topic=_cut(asked.topic))
        refusal = (key, asked, outcome)
        if refusal in self._again:
            self._again[refusal] += 1
        elif len(self._again) < DISTINCT_MAX:
            self._again[refusal] = 0
            _write(logging.WARNING, key, asked, outcome)
        else:
            self._untold += 1
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(WINDOW_S, self._sum_up)

    def close(self) -> None:
        """Tell what is not told yet."""
        if self._end is not None:
            self._end.cancel()
            self._sum_up()

    def _sum_up(self) -> None:
        again, self._again, self._end = self._again, {}, None
        untold, self._untold = self._untold, 0
        for (key, asked, outcome), times in again.items():
            if times:
                _write(logging.WARNING, key, asked, outcome, times)
        if untold:
            _log.warning(
                "%d more refusals are not told one by one", untold, extra={"outcome": "refused", "count": untold}
            )


def recorded(run: Callable[..., Any], call_name: str, what: str) -> Callable[..., Any]:
    """`run`, the function of an admin call, with a line for each time that it did what it was asked.

    When it ends without an answer of the store, the line says that the outcome is unknown. `call_name` is the
    argument that holds the Call, `what` its name for the log.
    """

    async def run_and_record(**arguments: Any) -> Response:
        call: Call = arguments[call_name]
        outcome: str | None = UNKNOWN
        try:
            answer: Response = await run(**arguments)
            outcome = DONE
        except StoreUnavailable:
            raise
        except DeferdError:
            outcome = None  # refused: nothing was changed
            raise
        finally:
            if outcome is not None:
                key = call.key.name if call.service.access is not None else None
                topic, client = arguments.get("topic"), call.client_address()
                _write(logging.INFO, key, Asked(what, _cut(topic), client), outcome)
        return answer

    return run_and_record


def _cut(topic: str | None) -> str | None:
    return None if topic is None else topic[:_SHOWN]


def _write(level: int, key: str | None, asked: Asked, outcome: str, times: int | None = None) -> None:
    facts = {"key": key, "call": asked.what, "topic": asked.topic, "client": asked.client, "outcome": outcome}
    _log.log(
        level,
        "%s: %s%s by %s from %s%s",
        outcome,
        asked.what,
        "" if asked.topic is None else f" on topic {asked.topic!r}",
        "no known key" if key is None else f"key {key}",
        asked.client or "an unknown address",
        "" if times is None else f", {times} times more",
        extra=facts if times is None else {**facts, "count": times},
    )
