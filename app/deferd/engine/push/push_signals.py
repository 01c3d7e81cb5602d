"""What a process that pushes must hear of: a job that became ready, a changed push, a cancelled job."""

from __future__ import annotations

from collections.abc import Callable


def _ignore(*_facts: str) -> None:
    """Nobody pushes in this process."""


class PushSignals:
    """Set by the pushers of the process, called by the engine. Signals may be lost; `on_gap` says so."""

    def __init__(self) -> None:
        self.on_ready: Callable[[str], None] = _ignore
        """A topic may have something ready."""
        self.on_change: Callable[[str], None] = _ignore
        """The push of a topic was set or removed."""
        self.on_removed: Callable[[str, str], None] = _ignore
        """A job of a pushed topic was cancelled while it was held: its topic and id."""
        self.on_gap: Callable[[], None] = _ignore
        """Signals may have been lost."""

    def on_message(self, payload: str) -> None:
        """A message of the channel `deferd:push`."""
        topic, _, job_id = payload.partition(" ")
        if job_id:
            self.on_removed(topic, job_id)
        else:
            self.on_change(topic)
