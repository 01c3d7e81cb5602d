"""Random lives of jobs with windows and spreads on a real store: each due time keeps what these promise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from deferd.contract.errors import DeferdError
from deferd.contract.model import ChangeJob, JobState, TopicSettings
from deferd.contract.windows import read_window
from deferd.engine.engine import Engine
from deferd.engine.openings import Openings, spread_of
from deferd.engine.queue import PopRequest
from deferd.engine.record import NOT_PLACED, JobRecord
from deferd.store.connection import connect
from tests.drawn_input import FACTOR, drawn
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.window_times import now_ms
from tests.integration.store.store_servers import StoreServer

Result = TypeVar("Result")
IDS = st.sampled_from(["a", "b", "c"])
HOUR_S = 3600
WINDOWS = st.sampled_from(
    [
        {"zone": "Europe/Berlin", "from": "09:00", "to": "17:00"},
        {"zone": "America/New_York", "days": ["mon", "wed", "sat"], "from": "22:00", "to": "02:30"},
        [{"from": "00:00", "to": "00:10"}, {"zone": "Asia/Kathmandu", "from": "12:00", "to": "12:30"}],
    ]
)
PLACED = st.fixed_dictionaries(
    {}, optional={"window": st.none() | WINDOWS, "spread": st.none() | st.sampled_from([0, 60, 7200])}
)
DUE = st.fixed_dictionaries({}, optional={"delay": st.integers(0, 100).map(lambda hours: hours * HOUR_S)})


class WindowLives(RuleBasedStateMachine):
    """Puts, changes, releases and moves of the clock. After each, all delayed jobs are looked at."""

    server: StoreServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.server.command("FLUSHALL")
        self.store = self.runner.run(connect(self.server.url, timeout_s=5))
        engine = Engine(self.store, movable_clock=True, dead_retention_ms=HOUR_S * 1000)
        self.driver = EngineDriver(engine, self.server)
        self.queue, self.deliveries = engine.queue, engine.deliveries
        self.moved_exactly: set[str] = set()
        """Jobs whose due time is to be that of a retry within the opening hours, which no spread moves."""

    def teardown(self) -> None:
        self.runner.run(self.driver.engine.close())
        self.runner.run(self.store.close())
        self.runner.close()

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    @rule(job_id=IDS, fields=PLACED, due=DUE, on_conflict=st.sampled_from(["keep", "replace", "append"]))
    def put(self, job_id: str, fields: dict[str, Any], due: dict[str, Any], on_conflict: str) -> None:
        asked_from = self.run(now_ms(self.driver)) + due.get("delay", 0) * 1000
        with contextlib.suppress(DeferdError):
            outcome = self.run(self.driver.puts.put(job(job_id, **fields, **due, on_conflict=on_conflict)))
            record = outcome.record
            if outcome.outcome != "kept" and record.state is JobState.DELAYED and on_conflict != "append":
                asked = record.due_at_ms - record.placement.moved_ms
                assert 0 <= asked - asked_from < 5000
            self.moved_exactly.discard(job_id)

    @rule(fields=PLACED)
    def set_topic(self, fields: dict[str, Any]) -> None:
        self.run(self.driver.topics.set(TOPIC, TopicSettings.model_validate(fields)))

    @rule(job_id=IDS, fields=PLACED, due=DUE)
    def change(self, job_id: str, fields: dict[str, Any], due: dict[str, Any]) -> None:
        with contextlib.suppress(DeferdError):
            self.run(self.queue.change(TOPIC, job_id, ChangeJob.model_validate({**fields, **due})))
            if fields or due:
                self.moved_exactly.discard(job_id)

    @rule(delay_s=st.sampled_from([0, 1, HOUR_S, 20 * HOUR_S]), counts=st.booleans())
    def release(self, delay_s: int, counts: bool) -> None:
        for held in self.run(self.queue.pop(TOPIC, [PopRequest(1)])).jobs[0]:
            delay_ms = delay_s * 1000 if counts else max(delay_s * 1000, 100)
            self.run(self.deliveries.release(TOPIC, held.id, held.receipt, delay_ms=delay_ms, counts=counts))
            self.moved_exactly.add(held.id)

    @rule(hours=st.sampled_from([0.1, 1, 5, 26]))
    def pass_time(self, hours: float) -> None:
        self.run(self.driver.pass_time(hours * HOUR_S))

    @invariant()
    def delayed_jobs_are_placed(self) -> None:
        jobs, _ = self.run(self.driver.topics.jobs(TOPIC)) if self._is_known() else ([], None)
        for record in jobs:
            if record.state is JobState.DELAYED:
                self._check(record)

    def _is_known(self) -> bool:
        return bool(self.server.command("HEXISTS", "deferd:{0}:settings", TOPIC))

    def _check(self, record: JobRecord) -> None:
        placement = record.placement
        if placement is NOT_PLACED or record.items:
            return
        assert placement.moved_ms >= 0
        asked = record.due_at_ms - placement.moved_ms
        offset = spread_of(record.id, placement.spread_ms) if placement.spread_ms else 0
        if not placement.window:
            assert placement.moved_ms == (0 if record.id in self.moved_exactly else offset)
            return
        window = read_window(placement.window)
        assert not isinstance(window, str)
        openings = Openings.of(window if isinstance(window, list) else (window,))
        assert openings.next_open(record.due_at_ms) == record.due_at_ms, "it is due while the window is closed"
        if record.id in self.moved_exactly and placement.moved_ms == 0:
            return
        opening = openings.next_open(asked)
        assert record.due_at_ms == openings.next_open(opening + offset)


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.timeout(600 * max(FACTOR, 1))
def test_due_times_keep_their_promises(server: StoreServer) -> None:
    class Lives(WindowLives):
        pass

    Lives.server = server
    run_state_machine_as_test(Lives, settings=drawn(40))
