"""Runs each call on an engine and on a plain model of it, and compares their results and contents.

The test moves the store's clock, but the clock also runs by itself. So that this does not affect results, all times are
even numbers of seconds, and an example ends after `LONGEST_S` of real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import orjson
from hypothesis.stateful import RuleBasedStateMachine, invariant

from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.errors import DeferdError, JobNotFound
from deferd.contract.fields import POLICY, Kind
from deferd.contract.model import JobState
from deferd.engine.engine import Engine
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import ANY_RECEIPT, IMPOSSIBLE_RECEIPT, JobRecord, Receipt, from_store, read_record
from deferd.engine.redis_keys import PATTERN_REQUEST
from deferd.engine.topic_search import TopicSelection
from deferd.store.connection import connect
from tests.integration.engine.drawn_calls import ENDS, ERRORS, JOB_IDS, TAGS, TOPICS
from tests.integration.engine.engine_driver import EngineDriver
from tests.integration.engine.job_model import JobModel
from tests.integration.engine.modelled_job import (
    ANY_DELIVERY,
    DEAD_RETENTION_S,
    NO_DELIVERY,
    PLAIN,
    SOME_TEXT,
    Delivery,
    ModelJob,
)
from tests.integration.engine.modelled_puts import LIVE_STATES
from tests.integration.store.store_contents import Contents, of_all_partitions, read_contents
from tests.integration.store.store_servers import StoreServer

LONGEST_S = 0.9
"""Less than a second: the shortest time for which the store remembers a request."""

Result = TypeVar("Result")


class OutOfTimeError(Exception):
    """The example has taken so long that the real clock may affect results."""


class EngineAndModel(RuleBasedStateMachine):
    """Makes the same calls to the engine and to a model of each topic, and compares their results and contents."""

    server: StoreServer
    shards = 1

    def __init__(self) -> None:
        super().__init__()
        self.out_of_time = False
        self.runner = asyncio.Runner()
        self.server.command("FLUSHALL")
        self.began_s = time.monotonic()
        self.client = self.server.client()
        seconds, microseconds = self.client.time()
        self.began_ms = seconds * 1000 + microseconds // 1000
        self.store = self.runner.run(connect(self.server.url, timeout_s=5))
        self.engine = self.new_engine()
        self.driver = EngineDriver(self.engine, self.server)
        self.partitions = self.engine.partitions.known
        self.keys = self.engine._keys
        self.models = {topic: JobModel(topic) for topic in TOPICS}
        self.contents = {topic: of_all_partitions(self.read_partitions(topic)) for topic in TOPICS}
        self.versions: dict[str, dict[str, int]] = {topic: {} for topic in TOPICS}
        self.deliveries: dict[str, list[Delivery]] = {topic: [] for topic in TOPICS}
        self.seen_receipts: set[tuple[str, str, Any]] = set()
        self.bodies = 0
        self.ends = 0
        self.runner.run(self.driver.topics.pause(ENDS))  # pops by patterns leave its jobs

    @property
    def queue(self) -> JobQueue:
        return self.engine.queue

    def new_engine(self) -> Engine:
        return Engine(self.store, shards=self.shards, movable_clock=True, dead_retention_ms=DEAD_RETENTION_S * 1000)

    def read_partitions(self, topic: str) -> list[Contents]:
        return [read_contents(self.client, name, self.keys) for name in self.partitions.of(topic)]

    def teardown(self) -> None:
        if not self.out_of_time:
            self._check_soundness()
        self.client.close()
        self.runner.run(self.driver.engine.close())
        self.runner.run(self.store.close())
        self.runner.close()

    # Invariants

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if self.out_of_time:
            return
        try:
            for topic, model in self.models.items():
                partitions = self.read_partitions(topic)
                before, self.contents[topic] = self.contents[topic], of_all_partitions(partitions)
                for one in partitions:
                    self._check_partition(one)
                self._check_places(self.contents[topic], model)
                if self.contents[topic] != before:
                    self._check_counts(self.contents[topic], model)
                self._check_jobs(before, self.contents[topic], model)
            self._check_ends()
        except OutOfTimeError:
            self.out_of_time = True

    def _check_places(self, contents: Contents, model: JobModel) -> None:
        assert set(contents.pool) == set(model.jobs)
        for state, scores in contents.scores.items():
            assert set(scores) == {job.id for job in model.in_state(state)}
            for job_id, score in scores.items():
                model.jobs[job_id].exact_ms = score
        assert sorted(contents.ready_list) == sorted(job.id for job in model.in_state(JobState.READY))
        assert model.may_be_in_order(contents.ready_list)
        watched = {job.id: job for job in model.jobs.values() if job.watched_s is not None}
        assert set(contents.expiry) == set(watched)
        for job_id, job in watched.items():
            self.assert_same_instant(contents.expiry[job_id], job.watched_s)
        assert contents.holders == {job.id: job.consumer for job in model.jobs.values() if job.consumer}
        requested = {job.id: job.live.request_id for job in model.jobs.values() if job.live and job.live.request_id}
        noted = {job_id: entry.partition(" ") for job_id, entry in contents.requests.items()}
        assert {job_id: request_id for job_id, (request_id, _, _) in noted.items() if request_id} == requested
        assert {job_id for job_id, (_, _, since) in noted.items() if since} <= {
            job.id for job in model.jobs.values() if job.live
        }
        tombstones: dict[str, int] = {}
        for (_, key), until_s in model.tombstones.items():
            tombstones[_tombstone(key)] = max(until_s, tombstones.get(_tombstone(key), 0))
        assert set(contents.cancelled) == set(tombstones)
        for member, until_s in tombstones.items():
            self.assert_same_instant(contents.cancelled[member], until_s)
        taken: dict[str, int] = {}
        for (_, job_id), until_s in model.taken.items():
            taken[job_id] = max(until_s, taken.get(job_id, 0))
        assert set(contents.taken) == set(taken)
        for job_id, until_s in taken.items():
            self.assert_same_instant(contents.taken[job_id], until_s)
        tagged = {job.id: set(job.policy["tags"]) for job in model.jobs.values() if job.policy["tags"]}
        assert contents.tagged == tagged
        self._check_collections(contents, model)
        assert contents.groups == _groups_of(model)
        with_tag = {tag: {job_id for job_id, tags in tagged.items() if tag in tags} for tag in TAGS}
        assert contents.index == {tag: ids for tag, ids in with_tag.items() if ids}

    @staticmethod
    def _check_collections(contents: Contents, model: JobModel) -> None:
        """The follow-ups, and the items that are collected for jobs or for follow-ups."""
        follow_ups = {job.id: job.follow_up for job in model.jobs.values() if job.follow_up is not None}
        assert contents.follow.keys() == follow_ups.keys()
        collections = [job for job in (*model.jobs.values(), *follow_ups.values()) if job.is_open]
        items = {job.id: [orjson.dumps(item) for item in job.body] for job in collections}
        assert len(items) == len(collections)
        assert contents.item_lists == items
        assert contents.items == {job_id: sum(map(len, of_id)) for job_id, of_id in items.items()}

    @staticmethod
    def _check_partition(contents: Contents) -> None:
        """What has become of all jobs, and when the timer comes."""
        kept = len(contents.scores[JobState.FINISHED])
        gone = sum(count for outcome, count in contents.tally.items() if outcome != "put")
        assert contents.tally.get("put", 0) == gone + len(contents.pool) - kept
        work = contents.timer_work()
        assert not work or (contents.due_ms is not None and contents.due_ms <= min(work)), "the timer would be late"

    def _check_counts(self, contents: Contents, model: JobModel) -> None:
        view = self.run(self.driver.topics.get(model.topic))
        expected = result_of(model.counts)
        if isinstance(view, type):
            assert view == expected
            return
        assert view.counts == expected
        assert view.paused == model.paused
        assert view.next_due_at_ms == min(contents.scores[JobState.DELAYED].values(), default=None)
        assert (view.oldest_ready_age_ms is None) == (not model.in_state(JobState.READY))

    def _check_jobs(self, before: Contents, contents: Contents, model: JobModel) -> None:
        versions = self.versions[model.topic]
        for job_id in JOB_IDS:
            job = model.jobs.get(job_id)
            if job is not None and versions.get(job_id) == job.version:
                assert contents.of_job(job_id) == before.of_job(job_id), "changed by calls for other jobs"
                continue
            if job is None and job_id not in before.pool:
                continue
            record = self.get_job(model.topic, job_id)
            if job is None:
                assert record is JobNotFound
                continue
            self.is_as_modelled(record, job)
            self.assert_same_instant(record.reserved_since_ms, None if job.live is None else job.live.since_s)
            assert (record.followed_by is None) == (job.follow_up is None)
            if job.follow_up is not None:
                self.is_as_modelled(record.followed_by, job.follow_up)
            versions[job_id] = job.version

    def is_as_modelled(self, record: JobRecord, job: ModelJob, *, last_item_only: bool = False) -> None:
        """Assert that a response shows the job; to an append it shows the new item alone."""
        assert record.state is job.state
        assert orjson.loads(record.body) == (job.body[-1:] if last_item_only else job.body)
        assert record.items == job.items
        self.assert_same_instant(record.created_at_ms, job.created_s)
        self.assert_same_instant(record.due_by_ms, job.due_by_s)
        assert record.attempts == job.attempts
        assert record.endings.snoozes == job.snoozes
        for field in POLICY:
            if field.name in job.policy and field.kind is not Kind.BACKOFF:
                stored = record.stored(field.name)
                default = DEAD_RETENTION_S if field.name == "dead_retain" else field.default
                shown = default if stored is None else from_store(field, stored)
                assert shown == job.policy[field.name], field.name
        assert (record.unique_for_ms / 1000 or None) == job.policy["unique_for"]
        endings = record.endings
        assert [(*one[:1], *one[2:]) for one in endings.attempts_log] == [(*one[:1], *one[2:]) for one in job.log]
        for actual, expected in zip(endings.attempts_log, job.log, strict=True):
            self.assert_same_instant(actual[1], expected[1])
        self.assert_same_instant(record.deadline_at_ms, job.deadline_s)
        assert (record.stored("backoff") or ExponentialBackoff().model_dump()) == job.policy["backoff"]
        assert (record.tags or []) == job.policy["tags"]
        assert (record.group, record.priority) == (job.policy["group"], job.priority)
        assert record.last_error == job.last_error or (record.last_error and job.last_error is SOME_TEXT)
        assert record.reason == job.reason
        assert record.reserved_by == job.consumer
        assert (None if record.result is None else orjson.loads(record.result)) == job.result
        self.assert_same_instant(record.due_at_ms, job.due_s)
        self.assert_same_instant(record.reserved_until_ms, job.lease_end_s if job.live is not None else None)
        self.assert_same_instant(record.finished_at_ms, job.finished_at_s)
        if job.live is not None and job.live.receipt is not None:
            assert record.receipt == job.live.receipt

    def _check_ends(self) -> None:
        """Each end has put one job, which says so."""
        modelled = [end for model in self.models.values() for end in model.ends]
        pool = self.keys.of_topic(ENDS)[0]
        if self.client.hlen(pool) == len(modelled) == self.ends:
            return
        self.ends = len(modelled)
        stored: dict[bytes, bytes] = self.client.hgetall(pool)  # type: ignore[assignment]
        put = [_end_of(read_record(ENDS, job_id.decode(), JobState.READY, raw)) for job_id, raw in stored.items()]
        assert sorted(put) == sorted((end.id or "", _as_text(end.body)) for end in modelled)

    def _check_soundness(self) -> None:
        for topic in self.models:
            with contextlib.suppress(OutOfTimeError):
                checked = self.run(self.driver.engine.consistency.audit_topic(topic))
                assert isinstance(checked, type) or checked.clean

    # Helpers

    def new_body(self) -> dict[str, int]:
        self.bodies += 1
        return {"put": self.bodies}

    def elapsed_ms(self) -> float:
        return (time.monotonic() - self.began_s) * 1000

    def run(self, call: Coroutine[Any, Any, Result]) -> Any:
        """The call's result, or the class of the error that it raised."""
        result = self.runner.get_loop().run_until_complete(_result_or_error(call))
        if self.elapsed_ms() > LONGEST_S * 1000:
            raise OutOfTimeError
        return result

    def assert_same_instant(self, actual_ms: int | None, virtual_s: int | None) -> None:
        """Assert that the store's instant is the model's, within the real time that passes during an example."""
        if actual_ms is None or virtual_s is None:
            assert actual_ms == virtual_s
            return
        assert -1 <= actual_ms - self.began_ms - virtual_s * 1000 <= self.elapsed_ms() + 1

    def run_together(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """The results of calls made at the same time, in this order, so that group commit can join them."""

        async def together() -> list[Any]:
            return list(await asyncio.gather(*map(_result_or_error, calls)))

        results: list[Any] = self.run(together())
        return results

    def get_job(self, topic: str, job_id: str) -> Any:
        return self.run(self.queue.get(topic, job_id))

    def hand_out(self, topic: str, requests: list[PopRequest], place: str | None = None) -> None:
        """Pop for several consumers in one call, from one partition."""
        model, place = self.models[topic], place or topic
        ready = [job for job in model.in_state(JobState.READY) if model.place_of(job.id) == place]
        too_late = [job.id for job in ready if model.is_expired(job)]
        reply = self.run(self.queue.pop(place, requests))
        expired = {job_id for job_id in too_late if self.has_ended(topic, job_id)}
        for request, records in zip(requests, reply.jobs, strict=True):
            repeated = bool(model.earlier_deliveries(request.request_id, place))
            deliveries = model.pop(
                request.count,
                [record.id for record in records],
                ttr_s=None if request.ttr_ms is None else request.ttr_ms // 1000,
                consumer=request.consumer,
                request_id=request.request_id,
                expired=() if repeated else expired,
                place=place,
            )
            for record, delivery in zip(records, deliveries, strict=True):
                self.note_delivery(topic, record, delivery)
                job = model.jobs[record.id]
                self.is_as_modelled(record, job)
            if not repeated:
                expired = set()
        assert not expired, "a repeated request takes nothing off the Ready list"
        # One that is dead may have left its place to its follow-up.
        still_ready = [job for job in ready if model.jobs.get(job.id) is job and job.state is JobState.READY]
        assert reply.more or model.paused or not model.flows.can_go(still_ready, model.now_s)

    def hand_out_by_pattern(
        self, pattern: str, count: int, consumer: str | None, ttr_ms: int | None, request_id: str | None
    ) -> None:
        """Pop from all topics that match."""
        selection = TopicSelection([pattern])
        models = {topic: model for topic, model in self.models.items() if selection.match(topic)}
        in_store = None if request_id is None else f"{PATTERN_REQUEST}{request_id}"
        earlier = {topic: model.earlier_deliveries(in_store) for topic, model in models.items()}
        repeated = any(earlier.values())
        served = {topic: model for topic, model in models.items() if earlier[topic] or not repeated}
        ready = {
            topic: [] if model.paused else [job.id for job in model.in_state(JobState.READY)]
            for topic, model in models.items()
        }
        too_late = {
            topic: {job_id for job_id in ids if models[topic].is_expired(models[topic].jobs[job_id])}
            for topic, ids in ready.items()
        }
        pop = self.driver.engine.dispatcher.pop
        records: list[JobRecord] = self.run(
            pop((), selection=selection, count=count, ttr_ms=ttr_ms, consumer=consumer, request_id=request_id)
        )
        assert {record.topic for record in records} <= served.keys()
        if not repeated:
            good = {
                topic: [model.jobs[one] for one in ready[topic] if one not in too_late[topic]]
                for topic, model in models.items()
            }
            most = {topic: model.flows.room(good[topic], model.now_s) for topic, model in models.items()}
            least = {topic: model.flows.room(good[topic], model.now_s, surely=True) for topic, model in models.items()}
            assert bool(records) >= any(least.values())
            assert len(records) <= min(count, sum(most.values()))
            # A pop asks topics for as many jobs as are ready there. Of those that it does not get it takes no others.
            gets_all = not any(too_late.values()) and all(least[topic] == len(good[topic]) for topic in models)
            assert len(records) >= min(count, sum(least.values())) or not gets_all
        for topic, model in served.items():
            mine = [record for record in records if record.topic == topic]
            dead = {job_id for job_id in too_late[topic] if self.has_ended(topic, job_id)}
            deliveries = model.pop(
                len(mine),
                [record.id for record in mine],
                ttr_s=None if ttr_ms is None else ttr_ms // 1000,
                consumer=consumer,
                request_id=in_store,
                expired=dead,
            )
            for record, delivery in zip(mine, deliveries, strict=True):
                self.note_delivery(topic, record, delivery)
                self.is_as_modelled(record, model.jobs[record.id])

    def has_ended(self, topic: str, job_id: str) -> bool:
        """Whether a ready job is dead now, or was and is not kept, or its follow-up has its place."""
        job = self.get_job(topic, job_id)
        return job is JobNotFound or job.state is not JobState.READY

    def note_delivery(self, topic: str, record: JobRecord, delivery: Delivery) -> None:
        if delivery.receipt is None:
            seen = (topic, record.id, record.receipt)
            assert seen not in self.seen_receipts, "two deliveries with one receipt"
            self.seen_receipts.add(seen)
            self.deliveries[topic].append(delivery)
            delivery.receipt = record.receipt
        assert record.receipt == delivery.receipt
        assert record.request_id == delivery.request_id

    def target_of(self, topic: str, which: tuple[str, int]) -> tuple[str, Delivery]:
        """The id and the delivery that a consumer's call names, as close as possible to what was drawn.

        `live`: a job with its live delivery; `old`: one of the last deliveries, live or not, with its job;
        `another's`: the same with any job; `ready`: a ready job without a receipt; `any`: any job without a receipt;
        `none`: any job with a receipt that never was.
        """
        kind, number = which
        job_id = JOB_IDS[number % len(JOB_IDS)]
        if kind == "ready":
            ready = self.models[topic].in_state(JobState.READY)
            return ready[number % len(ready)].id if ready else job_id, ANY_DELIVERY
        if kind == "live":
            live = [job.live for job in self.models[topic].jobs.values() if job.live is not None]
            if live:
                delivery = live[number % len(live)]
                return delivery.job_id, delivery
        if kind in ("old", "another's") and self.deliveries[topic]:
            delivery = self.deliveries[topic][-1 - number % len(self.deliveries[topic])]
            return delivery.job_id if kind == "old" else job_id, delivery
        if kind == "none":
            return job_id, NO_DELIVERY
        return job_id, ANY_DELIVERY

    def as_popped(self, topic: str, delivery: Delivery) -> JobRecord:
        nonce, attempt = delivery.receipt
        return JobRecord(
            topic=topic,
            id=delivery.job_id,
            state=JobState.RESERVED,
            created_at_ms=0,
            due_at_ms=0,
            nonce=nonce,
            attempts=attempt,
            body=b"",
            request_id=delivery.request_id,
        )


def _groups_of(model: JobModel) -> dict[str, tuple[int, int, str]]:
    """What the store has of the groups of a topic."""
    live = [job for job in model.jobs.values() if job.state in LIVE_STATES and job.flow != PLAIN]
    holds = model.flows.holds
    return {
        group: (
            sum(job.group == group for job in live),
            sum(job.group == group and job.live is not None for job in live if group),
            holds.get(group, ""),
        )
        for group in {job.group for job in live}
    }


def _end_of(record: JobRecord) -> tuple[str, str]:
    """The id of the job that an end put, '' for a new one, and its body, with SOME_TEXT for an error of the service."""
    body = orjson.loads(record.body)
    if body.get("error") not in ERRORS:
        body["error"] = SOME_TEXT
    return "" if record.id.startswith("end-") else record.id, _as_text(body)


def _as_text(body: dict[str, Any]) -> str:
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()


def receipt_of(delivery: Delivery) -> Receipt:
    if delivery is ANY_DELIVERY:
        return ANY_RECEIPT
    return IMPOSSIBLE_RECEIPT if delivery is NO_DELIVERY else delivery.receipt


def _tombstone(key: Delivery | str) -> str:
    if isinstance(key, str):
        return key
    return f"{key.job_id} {key.receipt.nonce} {key.receipt.attempt}"


async def _result_or_error(call: Awaitable[Result]) -> Result | type[DeferdError]:
    try:
        return await call
    except DeferdError as exc:
        return type(exc)


def result_of(call: Callable[[], Any]) -> Any:
    """The model's result, or the class of the error that it raised."""
    try:
        return call()
    except DeferdError as exc:
        return type(exc)
