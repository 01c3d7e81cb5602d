"""The engine against its plain model, with topics of several partitions whose number grows while jobs live.

Two processes take turns with the calls on jobs; the second one learns of a growth only when a call needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis.stateful import rule

from deferd.contract.errors import DifferentShard, JobCancelled, JobNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from tests.integration.engine import drawn_calls as drawn
from tests.integration.engine.drawn_calls import TOPICS
from tests.integration.engine.engine_and_model import result_of
from tests.integration.engine.job_model import JobModel
from tests.integration.engine.modelled_job import Delivery
from tests.integration.engine.test_state_machine import EveryCall, run_machine
from tests.integration.store.store_servers import StoreServer

PARTITIONS, MORE_PARTITIONS = 4, 6


class EveryCallOnPartitions(EveryCall):
    """All calls, in any order, on topics that have several partitions."""

    shards = 8
    may_have_flows = False
    may_have_ends = False  # their topic would be in another shard than most partitions

    def __init__(self) -> None:
        super().__init__()
        self.engines = [self.engine, self.new_engine()]
        self.turns = 0
        self.finishes: Any = None
        """Whether the last finish that puts jobs ends a delivery, or its error, by the model."""
        for topic in TOPICS:
            self.runner.run(self.driver.topics.set(topic, TopicSettings(partitions=PARTITIONS)))
            self.models[topic] = JobModel(topic, known=True)
            self._model_partitions(topic)

    def _model_partitions(self, topic: str) -> None:
        known = self.partitions
        model = self.models[topic]
        model.partitions, model.home_of = known.count(topic), lambda job_id: known.home(topic, job_id)

    @rule(call=drawn.any_verb(plus=[("grow", {"topic": topic}) for topic in TOPICS]))
    def do(self, call: tuple[str, dict[str, Any]]) -> None:
        self.turns += 1
        self.engine = self.engines[self.turns % len(self.engines)]
        self.make(call)

    def put(self, topic: str, puts: list[dict[str, Any]]) -> None:
        super().put(topic, self._in_order(topic, puts))

    def put_many(self, topic: str, many: list[dict[str, Any]]) -> None:
        super().put_many(topic, self._in_order(topic, many))

    def _in_order(self, topic: str, puts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The puts of a call that are stored in their order.

        A process sends those of one partition together. If it does not know of a growth yet, jobs of several may belong
        into one now, where they may come in another order.
        """
        known = self.engine.partitions.known
        if known.count(topic) == self.models[topic].partitions:
            return puts
        return [put for put in puts if known.home(topic, put["job_id"]) == known.home(topic, puts[0]["job_id"])]

    def return_popped(self, topic: str, which: list[tuple[str, int]]) -> None:
        self.engine = self.driver.engine  # a process returns only what it has popped
        super().return_popped(topic, which)

    def grow(self, topic: str) -> None:
        wanted = self.models[topic].settings | {"partitions": MORE_PARTITIONS}
        self.run(self.driver.topics.set(topic, TopicSettings.model_validate(wanted)))
        assert self.partitions.count(topic) == MORE_PARTITIONS
        self._model_partitions(topic)

    def kept_settings(self, topic: str) -> dict[str, Any]:
        return {"partitions": self.models[topic].partitions}

    def hand_out(self, topic: str, requests: list[PopRequest], place: str | None = None) -> None:
        """Pop from one partition, or by the dispatcher from all of them."""
        names = self.partitions.of(topic)
        if len(requests) > 1 or self.turns % 3 == 0:
            super().hand_out(topic, requests, names[self.turns // 3 % len(names)])
        else:
            self._hand_out_from_all(topic, requests[0])

    def _hand_out_from_all(self, topic: str, request: PopRequest) -> None:
        model = self.models[topic]
        ready = model.in_state(JobState.READY)
        too_late = {job.id for job in ready if model.is_expired(job)}
        repeated = bool(model.earlier_deliveries(request.request_id))
        records: list[JobRecord] = self.run(
            self.driver.engine.dispatcher.pop(
                [topic],
                count=request.count,
                ttr_ms=request.ttr_ms,
                consumer=request.consumer,
                request_id=request.request_id,
            )
        )
        deliveries = model.pop(
            request.count,
            [record.id for record in records],
            ttr_s=None if request.ttr_ms is None else request.ttr_ms // 1000,
            consumer=request.consumer,
            request_id=request.request_id,
            expired=() if repeated else {job_id for job_id in too_late if self.has_ended(topic, job_id)},
        )
        for record, delivery in zip(records, deliveries, strict=True):
            assert record.topic == topic
            self.note_delivery(topic, record, delivery)
            self.is_as_modelled(record, model.jobs[record.id])

    def _expect_finish_and_put(
        self,
        topic: str,
        job_id: str,
        delivery: Delivery,
        puts: Sequence[tuple[str, dict[str, Any]]],
        result: Any,
    ) -> Any:
        """Nothing is done if a put belongs into another shard than the job, or is where it was before a growth."""
        place = self.models[topic].place_of(job_id)
        self.finishes = result_of(lambda: self.models[topic].may_finish(job_id, delivery))
        for of, put in puts:
            home = self.partitions.home(of, put["job_id"])
            is_elsewhere = self.models[of].place_of(put["job_id"]) != home
            if is_elsewhere or self.keys.shard_of(home) != self.keys.shard_of(place):
                return DifferentShard
        return super()._expect_finish_and_put(topic, job_id, delivery, list(puts), result)

    def may_be_instead(self, actual: Any, expected: Any, topic: str, job_id: str) -> bool:
        """When the finish itself does nothing, and the puts are too far, a process may find out either one first.

        A job that is missing, also because it was cancelled, may be looked for in a partition of which the puts are too
        far.
        """
        if expected is DifferentShard:
            return bool(actual == ([] if self.finishes is False else self.finishes))
        is_looked_for = len(self.partitions.homes(topic, job_id)) > 1
        return is_looked_for and actual is DifferentShard and expected in {JobNotFound, JobCancelled}


@pytest.mark.hypothesis
def test_partitioned_topics_do_what_the_model_does(running_server: StoreServer) -> None:
    run_machine(EveryCallOnPartitions, running_server, 60)
