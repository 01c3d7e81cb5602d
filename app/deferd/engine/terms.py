"""The terms of puts: the settings of a topic as the sender knows them, which the script compares with the stored ones.

If the topic has others, the script does nothing and returns all of them. The caller corrects what it knows, and sends
again by those.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from deferd.contract.errors import StoreUnavailable

ANY_DEFAULT = -1
"""In place of a default durability: all jobs name their own, so the default of the topic does not matter."""
ANY_NUMBER = 0
"""In place of the number of partitions: it does not matter."""
DONE, OUTDATED, REFUSED = b"done", b"terms", b"refused"
"""The first value of a script's reply: it did what it was called for; its terms were outdated; or it refused a job."""
_MOST_TRIES = 8
_HEAD = struct.Struct("<hH")
Done = TypeVar("Done")


class Terms(NamedTuple):
    """What the settings of a topic are: in a call, what they must be so that it stores anything.

    `durability` is the default level of the topic, `partitions` the number of them, and `placing` its defaults for due
    times, by which those of the jobs are placed, as the settings have them.
    """

    durability: int
    partitions: int
    placing: str

    def argument(self) -> bytes:
        """As lua/lib/terms.lua reads them."""
        return _HEAD.pack(self.durability, self.partitions) + self.placing.encode()


def read_terms(reply: Sequence[Any]) -> Terms:
    """The terms of a topic as scripts return them."""
    durability, partitions, placing = reply
    return Terms(durability, partitions, placing.decode())


async def until_done(attempt: Callable[[], Awaitable[Done | None]], gave_up: str) -> Done:
    """What `attempt` returns. It returns None if its terms were outdated, once it has corrected what is known.

    Raises:
        StoreUnavailable: they were changed each time in between; `gave_up` is its text.
    """
    for _ in range(_MOST_TRIES):
        done = await attempt()
        if done is not None:
            return done
    raise StoreUnavailable(gave_up)
