"""Where the reads of a relay begin: behind the rows that it knows, and before any that may still become visible.

A transaction gets the positions of its rows when its commit begins, and they become visible when it ends, perhaps after
those of later positions. A row that follows on it must not be sent first. To read from the first position each time
would pass over the index entries of all rows that were deleted lately, so the mark follows the rows, with a proof: the
commits that were under way when a position was the last one have ended, so all rows up to it are visible.
"""

from __future__ import annotations

from collections.abc import Sequence

from deferd.contract.clocks import monotonic_s
from deferd.outbox.database import OutboxDatabase, OutboxRow

_PROOF_S = 0.2
"""How often a proof is begun, or looked at."""


class ReadMark:
    """The mark of one connection: `position`, behind which the next read begins."""

    def __init__(self, database: OutboxDatabase) -> None:
        self._database = database
        self.position = 0
        self._candidate = self._proven = 0
        self._under_way: set[str] = set()
        """Of those commits that were under way when `_candidate` was the last position, those that still may be."""
        self._next_proof_s = 0.0

    async def prove(self) -> None:
        """Call it before each read: what it proves holds for the reads that begin afterwards."""
        if monotonic_s() < self._next_proof_s:
            return
        self._next_proof_s = monotonic_s() + _PROOF_S
        if self._candidate == self._proven:
            self._candidate = await self._database.last_position()
            if self._candidate == self._proven:
                return
            self._under_way = await self._database.commits_under_way()
        else:
            self._under_way &= await self._database.commits_under_way()
        if not self._under_way:
            self._proven = self._candidate

    def note_read(self, rows: Sequence[OutboxRow]) -> None:
        """Move the mark behind a read that began at it."""
        known = rows[-1].position if rows else self._proven
        self.position = max(self.position, min(known, self._proven))

    def reset(self) -> None:
        """Begin at the first row."""
        self.position = 0
