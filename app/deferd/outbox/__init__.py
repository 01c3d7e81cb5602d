"""The outbox: puts, cancels and changes that commit with the rows of an application's own PostgreSQL.

`put`, `cancel`, `reschedule` and `cancel_tag` write into it, and `deferd relay` sends what has committed.
"""

from __future__ import annotations

from deferd.outbox.calls import cancel, cancel_tag, put, reschedule

__all__ = ["cancel", "cancel_tag", "put", "reschedule"]
