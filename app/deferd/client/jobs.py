"""Jobs by their names."""

from __future__ import annotations

from typing import NamedTuple


class JobRef(NamedTuple):
    """A job by its name, in place of a Delivery in finish, release, touch and bury.

    Without a receipt the call applies to whichever delivery is live.
    """

    topic: str
    id: str
    receipt: str | None = None
