"""What the holder of an API key may do."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What the holder of a key may do."""

    PUT = "put"
    """Put jobs and change them."""
    POP = "pop"
    """Pop jobs, and report their outcomes."""
    CANCEL = "cancel"
    """Cancel jobs."""
    READ = "read"
    """Read jobs, topics, metrics and the OpenAPI document."""
    ADMIN = "admin"
    """Everything, including what concerns a topic as a whole or the store, which no other scope allows."""
