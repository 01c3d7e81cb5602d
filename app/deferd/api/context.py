"""What all requests of an application share."""

from __future__ import annotations

from deferd.api.auth.admission import Gate
from deferd.api.unsent_bytes import UnsentBytes
from deferd.engine.engine import Engine
from deferd.settings import Settings


class AppContext:
    """Settings, gate, engine and the budget of unsent bytes. `engine` exists once the application has started."""

    __slots__ = ("engine", "gate", "settings", "unsent")

    engine: Engine

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self.settings = settings
        self.gate = gate
        self.unsent = UnsentBytes(settings.max_unsent_bytes)
