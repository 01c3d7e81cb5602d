"""What all requests of an application share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deferd.api.auth.admission import Gate
from deferd.api.computations import Computations
from deferd.api.consumer_tracker import ConsumerTracker
from deferd.api.unsent_bytes import UnsentBytes
from deferd.contract.push_targets import AllowedTargets
from deferd.engine.engine import Engine
from deferd.settings import Settings

if TYPE_CHECKING:
    from deferd.push.pushers import Pushers


class AppContext:
    """Settings, gate, engine, the consumers seen, the budget of unsent bytes, the shares of the computing time, and
    what may be pushed to.

    `engine` exists once the application has started, and so does `pushers`, which is None when nothing is pushed.
    """

    __slots__ = ("computations", "consumers", "engine", "gate", "pushers", "settings", "targets", "unsent")

    engine: Engine

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self.settings = settings
        self.gate = gate
        self.computations = Computations()
        self.consumers = ConsumerTracker()
        self.unsent = UnsentBytes(settings.max_unsent_bytes)
        self.targets = AllowedTargets(settings.push_allow, settings.push_network)
        self.pushers: Pushers | None = None
