"""The audit log: a line for each admin action that was carried out and for each key that was refused.

Logger `deferd.audit`; as JSON the facts are fields of their own. Never a token: a key is told by its name, an unknown
one not at all. The client is the address that the connection came from, so behind a proxy it is the proxy's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from deferd.errors import DeferdError, StoreUnavailable

if TYPE_CHECKING:
    from deferd.api.call import Call

_log = logging.getLogger("deferd.audit")
_SHOWN = 200
DONE, UNKNOWN = "done", "unknown"


def refused(*, key: str | None, call: str, topic: str | None, client: str | None, outcome: str) -> None:
    """A key was refused, or none was sent; `outcome` is the code of the answer."""
    _write(logging.WARNING, key=key, call=call, topic=topic, client=client, outcome=outcome)


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
                _write(logging.INFO, key=key, call=what, topic=topic, client=client, outcome=outcome)
        return answer

    return run_and_record


def _write(level: int, *, key: str | None, call: str, topic: str | None, client: str | None, outcome: str) -> None:
    shown = None if topic is None else topic[:_SHOWN]
    facts = {"key": key, "call": call, "topic": shown, "client": client, "outcome": outcome}
    _log.log(
        level,
        "%s: %s%s by %s from %s",
        outcome,
        call,
        "" if shown is None else f" on topic {shown!r}",
        "no known key" if key is None else f"key {key}",
        client or "an unknown address",
        extra=facts,
    )
