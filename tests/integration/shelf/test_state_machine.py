"""The engine against its plain model, with all delayed jobs on the shelf during each call."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from deferd.engine.engine import Engine
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.shelf.rows import Rows
from tests.integration.engine.drawn_calls import TOPICS
from tests.integration.engine.modelled_job import DEAD_RETENTION_S
from tests.integration.engine.test_partitions_state_machine import EveryCallOnPartitions
from tests.integration.engine.test_state_machine import EveryCall, run_machine
from tests.integration.store.store_servers import StoreServer
from tests.shelving import ShelfInProcess, let_go

BATCH = 3
EVER_MS = 1 << 47
OF_TIME = frozenset({"pass_time", "run_timer"})
"""Before time passes a service loads what will be due."""


class OnShelf(EveryCall):
    """Before each call jobs go to the shelf; afterwards they come back, to be compared."""

    mover: ShelfInProcess | None = None

    def new_engine(self) -> Engine:
        if self.mover is None:
            self.ending = contextlib.ExitStack()
            folder = self.ending.enter_context(tempfile.TemporaryDirectory())
            rows = self.ending.enter_context(Rows(Path(folder)))
            rows._on_disk.sync = False  # no process ends here, and the time of an example is short
            self.mover = ShelfInProcess(rows, Scripts(self.store, movable_clock=True), Keys(self.shards))
        return Engine(
            self.store,
            shards=self.shards,
            movable_clock=True,
            dead_retention_ms=DEAD_RETENTION_S * 1000,
            shelf=self.mover,
        )

    def teardown(self) -> None:
        super().teardown()
        self.ending.close()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        assert self.mover is not None
        loop = self.runner.get_loop()
        if getattr(call, "__name__", "") not in OF_TIME:
            loop.run_until_complete(self._shelve(self.mover))
        try:
            return super().run(call)
        finally:
            loop.run_until_complete(self.mover.load_due(EVER_MS))

    async def _shelve(self, mover: ShelfInProcess) -> None:
        let_go(mover)
        for partition in self.partitions.of_all(TOPICS):
            stayed, looked_at = 0, BATCH
            while looked_at == BATCH:
                looked_at, left = await mover.move_out(partition, 0, pass_over=stayed, most=BATCH)
                stayed += looked_at - left


class OnPartitionsAndShelf(OnShelf, EveryCallOnPartitions):
    """The same with partitions, whose number grows."""


@pytest.mark.slow(seconds=40)
@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [OnShelf, OnPartitionsAndShelf])
def test_the_engine_does_what_the_model_does_with_jobs_on_the_shelf(
    running_server: StoreServer, machine: type[OnShelf]
) -> None:
    run_machine(machine, running_server, 60)
