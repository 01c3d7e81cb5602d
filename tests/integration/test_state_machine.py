"""The engine against the plain model of it in job_model.py, over every transition, in any order.

The store's clock is moved by hand, but it also runs: to keep that from deciding anything, all times are even numbers
of seconds, and an example ends when it has taken `LONGEST_S` of real time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from deferd.engine.engine import Engine
from deferd.engine.keys import Keys
from deferd.engine.queue import PopRequest, Released
from deferd.engine.record import ANY_RECEIPT, IMPOSSIBLE_RECEIPT, JobRecord
from deferd.errors import DeferdError, JobNotFound
from deferd.model import ChangeJob, FinishItem, JobState, PutJob, TopicSettings
from deferd.store.connection import connect
from tests.integration.engine_driver import EngineDriver
from tests.integration.job_model import (
    ANY_DELIVERY,
    DEAD_RETENTION_S,
    NO_DELIVERY,
    SOME_TEXT,
    Delivery,
    JobModel,
    ModelJob,
)
from tests.integration.store_servers import StoreServer

LONGEST_S = 0.9
"""Less than a second: the shortest time for which the store remembers what a request was given."""
TOPICS = ("busy", "other")
JOB_IDS = ("a", "b", "c", "d")
KEYS = Keys(shards=1)
_SCORED = {
    "delay": JobState.DELAYED,
    "reserved": JobState.RESERVED,
    "dead": JobState.DEAD,
    "finished": JobState.FINISHED,
}

Result = TypeVar("Result")

topics = st.sampled_from([TOPICS[0]] * 7 + [TOPICS[1]])
job_ids = st.sampled_from(JOB_IDS)
delays = st.sampled_from([0, 0, 0, 10, 60])
waits = st.sampled_from([None, None, 0, 10])
moves = st.sampled_from([10, 2, 30, 10, 60, 120])
backoffs = st.sampled_from(
    [
        {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
        {"kind": "exponential", "base": 10, "cap": 50, "jitter": 0},
        {"kind": "fixed", "seconds": 10, "jitter": 0},
        {"kind": "fixed", "seconds": 0, "jitter": 0},
        {"kind": "schedule", "seconds": [10], "then": "dead", "jitter": 0},
        {"kind": "schedule", "seconds": [10, 60], "then": "repeat_last", "jitter": 0},
    ]
)
_policy_fields: dict[str, st.SearchStrategy[Any]] = {
    "ttr": st.sampled_from([10, 30]),
    "max_attempts": st.sampled_from([None, 2, None, 1]),
    "backoff": backoffs,
    "ttl": st.sampled_from([None, 60, None, 10]),
    "retain": st.sampled_from([0, 30]),
}
policies = st.fixed_dictionaries({}, optional=_policy_fields)
puts = st.fixed_dictionaries(
    {
        "job_id": job_ids,
        "policy": policies,
        "delay_s": delays,
        "on_conflict": st.sampled_from(["replace", "reject", "replace", "keep"]),
    }
)
topic_settings = st.fixed_dictionaries({}, optional={**_policy_fields, "max_jobs": st.integers(1, 4)})
leases = st.sampled_from([None, None, 10, 120])
consumers = st.sampled_from(["worker-1", "worker-2", None])
request_ids = st.sampled_from([None, None, "r1", "r2"])
errors = st.sampled_from([None, "", "it went wrong"])
states = st.sampled_from([*JobState, None])
receipts = st.one_of(
    st.tuples(st.just("live"), st.integers(0, 3)),
    st.tuples(st.just("live"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["any", "none"]), st.integers(0, 3)),
    st.tuples(st.just("old"), st.integers(0, 5)),
)
"""Which job a consumer speaks of, and with which receipt; see `EngineAndModel._meant`."""


class OutOfTimeError(Exception):
    """The example has taken so long that the real clock may decide something."""


_VERBS: dict[str, tuple[int, st.SearchStrategy[dict[str, Any]]]] = {}


def verb(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """One of the things that an example may do next, `weight` times as often as others.

    These are not rules of their own, since Hypothesis leaves out half of the rules in many examples, and next to
    nothing happens where there are no puts or no pops.
    """

    def note(method: Callable[..., None]) -> Callable[..., None]:
        _VERBS[method.__name__] = weight, st.fixed_dictionaries(arguments)
        return method

    return note


def _any_verb() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    names = [name for name, (weight, _) in _VERBS.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), _VERBS[name][1]))


@dataclass(frozen=True)
class Contents:
    """The store's keys of one topic, as they are."""

    pool: dict[str, bytes]
    scores: dict[JobState, dict[str, int]]
    ready_list: list[str]
    expiry: dict[str, int]
    holders: dict[str, str]
    cancelled: dict[str, int]
    due_ms: int | None
    settings: bytes | None

    def of_job(self, job_id: str) -> tuple[bytes | None, list[int | None]]:
        return self.pool.get(job_id), [scores.get(job_id) for scores in (*self.scores.values(), self.expiry)]

    def left_over_ids(self, model: JobModel) -> set[str]:
        """Ids that stand in the Ready list more often than they are ready."""
        ready = [job.id for job in model.in_state(JobState.READY)]
        return {job_id for job_id in self.ready_list if self.ready_list.count(job_id) > ready.count(job_id)}


class EngineAndModel(RuleBasedStateMachine):
    """Does the same to the engine and to a model of each topic, and compares their answers and contents."""

    server: StoreServer

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
        engine = Engine(self.store, movable_clock=True, dead_retention_ms=DEAD_RETENTION_S * 1000)
        self.driver = EngineDriver(engine, self.server)
        self.queue = engine.queue
        self.models = {topic: JobModel(topic) for topic in TOPICS}
        self.contents = {topic: self._read(topic) for topic in TOPICS}
        self.versions: dict[str, dict[str, int]] = {topic: {} for topic in TOPICS}
        self.deliveries: dict[str, list[Delivery]] = {topic: [] for topic in TOPICS}
        self.seen_receipts: set[tuple[str, str, Any]] = set()
        self.bodies = 0

    def teardown(self) -> None:
        self.client.close()
        self.runner.run(self.driver.engine.close())
        self.runner.run(self.store.close())
        self.runner.close()

    # Producers

    @verb(4, topic=topics, put=puts)
    def put(self, topic: str, put: dict[str, Any]) -> None:
        put = {**put, "body": self._new_body()}
        actual = self._run(self.queue.put(_put_job(topic, put)))
        expected = _answer(lambda: self.models[topic].put(**put))
        assert (actual if isinstance(actual, type) else actual.outcome) == expected
        if not isinstance(actual, type):
            self._is_as_modelled(actual.record, self.models[topic].jobs[actual.record.id])

    @verb(2, topic=topics, many=st.lists(puts, min_size=2, max_size=4))
    def put_many(self, topic: str, many: list[dict[str, Any]]) -> None:
        many = [{**put, "body": self._new_body()} for put in many]
        actual = self._run(self.queue.put_many([_put_job(topic, put) for put in many]))
        assert [result.code for result in actual] == self.models[topic].put_many(many)

    @verb(topic=topics, job_id=job_ids, changes=policies, delay=st.none() | delays, new_body=st.booleans())
    def change(self, topic: str, job_id: str, changes: dict[str, Any], delay: int | None, new_body: bool) -> None:
        if new_body:
            changes = {**changes, "body": self._new_body()}
        wanted = ChangeJob.model_validate({**changes, "delay": delay})
        actual = self._run(self.queue.change(topic, job_id, wanted))
        expected = _answer(lambda: self.models[topic].change(job_id, changes, delay_s=delay))
        if isinstance(actual, JobRecord):
            assert expected is None
            self._is_as_modelled(actual, self.models[topic].jobs[job_id])
        else:
            assert actual == expected

    @verb(topic=topics, which=receipts, refuse=st.booleans())
    def cancel(self, topic: str, which: tuple[str, int], refuse: bool) -> None:
        job_id, _ = self._meant(topic, which)
        actual = self._run(self.queue.cancel(topic, job_id, refuse_reserved=refuse))
        assert actual == _answer(lambda: self.models[topic].cancel(job_id, refuse_reserved=refuse))

    # Consumers

    @verb(6, topic=topics, count=st.integers(1, 3), consumer=consumers, ttr=leases, request_id=request_ids)
    def pop(self, topic: str, **wanted: Any) -> None:
        self._pop(topic, [wanted])

    @verb(
        2,
        topic=topics,
        counts=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        request_ids=st.tuples(request_ids, request_ids),
    )
    def pop_for_two(self, topic: str, counts: tuple[int, int], request_ids: tuple[str | None, str | None]) -> None:
        consumers = ("worker-1", "worker-2")
        self._pop(
            topic,
            [
                {"count": count, "consumer": consumer, "ttr": None, "request_id": request_id}
                for count, consumer, request_id in zip(counts, consumers, request_ids, strict=True)
            ],
        )

    @verb(topic=topics, which=st.lists(receipts, min_size=1, max_size=3))
    def give_back(self, topic: str, which: list[tuple[str, int]]) -> None:
        deliveries = [self._meant(topic, pick)[1] for pick in which]
        deliveries = [delivery for delivery in deliveries if delivery.job_id]
        actual = self._run(self.queue.give_back([self._as_popped(topic, delivery) for delivery in deliveries]))
        assert actual == self.models[topic].give_back(deliveries)

    @verb(topic=topics, which=receipts, result=st.sampled_from([None, {"paid": [True]}]))
    def finish(self, topic: str, which: tuple[str, int], result: Any) -> None:
        job_id, delivery = self._meant(topic, which)
        actual = self._run(self.queue.finish(topic, job_id, delivery.receipt, result))
        assert actual == _answer(lambda: self.models[topic].finish(job_id, delivery, result))

    @verb(topic=topics, which=st.lists(receipts, min_size=2, max_size=3))
    def finish_many(self, topic: str, which: list[tuple[str, int]]) -> None:
        meant = [self._meant(topic, pick) for pick in which]
        items = [
            FinishItem(id=job_id, receipt=None if delivery is ANY_DELIVERY else str(delivery.receipt))
            for job_id, delivery in meant
        ]
        actual = self._run(self.queue.finish_many(topic, items))
        expected = [
            _answer(lambda job_id=job_id, delivery=delivery: self.models[topic].finish(job_id, delivery))
            for job_id, delivery in meant
        ]
        assert [result.code for result in actual] == [error and error.code for error in expected]

    @verb(3, topic=topics, which=receipts, delay=waits, error=errors)
    def release(self, topic: str, which: tuple[str, int], delay: int | None, error: str | None) -> None:
        job_id, delivery = self._meant(topic, which)
        delay_ms = None if delay is None else delay * 1000
        actual = self._run(self.queue.release(topic, job_id, delivery.receipt, delay_ms=delay_ms, error=error))
        expected = _answer(lambda: self.models[topic].release(job_id, delivery, delay_s=delay, error=error))
        if isinstance(actual, Released):
            state, due_s, attempts = expected
            assert (actual.state, actual.attempts) == (state, attempts)
            self._is_when(actual.due_at_ms, due_s)
        else:
            assert actual == expected

    @verb(topic=topics, which=receipts, ttr=leases)
    def touch(self, topic: str, which: tuple[str, int], ttr: int | None) -> None:
        job_id, delivery = self._meant(topic, which)
        ttr_ms = None if ttr is None else ttr * 1000
        actual = self._run(self.queue.touch(topic, job_id, delivery.receipt, ttr_ms=ttr_ms))
        expected = _answer(lambda: self.models[topic].touch(job_id, delivery, ttr_s=ttr))
        if isinstance(actual, int):
            self._is_when(actual, expected)
        else:
            assert actual == expected

    @verb(topic=topics, which=receipts, error=errors)
    def bury(self, topic: str, which: tuple[str, int], error: str | None) -> None:
        job_id, delivery = self._meant(topic, which)
        actual = self._run(self.queue.bury(topic, job_id, delivery.receipt, error=error))
        assert actual == _answer(lambda: self.models[topic].bury(job_id, delivery, error=error))

    # Operators

    @verb(topic=topics, limit=st.integers(1, 3))
    def redrive_some(self, topic: str, limit: int) -> None:
        dead = [job.id for job in self.models[topic].in_state(JobState.DEAD)]
        actual = self._run(self.driver.topics.redrive(topic, limit=limit))
        redriven = [job_id for job_id in dead if self._look(topic, job_id).state is JobState.READY]
        assert actual == _answer(lambda: self.models[topic].redrive_some(limit, redriven))

    @verb(topic=topics, ids=st.lists(job_ids, min_size=1, max_size=4))
    def redrive_ids(self, topic: str, ids: list[str]) -> None:
        actual = self._run(self.driver.topics.redrive(topic, ids))
        assert actual == _answer(lambda: self.models[topic].redrive_ids(ids))

    @verb(topic=topics, state=states)
    def purge(self, topic: str, state: JobState | None) -> None:
        actual = self._run(self.driver.topics.purge(topic, state))
        assert actual == _answer(lambda: self.models[topic].purge(state))

    @verb(topic=topics, values=topic_settings)
    def configure(self, topic: str, values: dict[str, Any]) -> None:
        view = self._run(self.driver.topics.configure(topic, TopicSettings.model_validate(values)))
        self.models[topic].configure(values)
        assert view.settings == TopicSettings.model_validate(values)

    @verb(topic=topics, paused=st.sampled_from([False, False, False, True]))
    def pause(self, topic: str, paused: bool) -> None:
        verb = self.driver.topics.pause if paused else self.driver.topics.resume
        view = self._run(verb(topic))
        self.models[topic].pause(paused)
        assert view.paused is paused

    @verb(topic=topics, state=states, limit=st.integers(1, 3))
    def list_jobs(self, topic: str, state: JobState | None, limit: int) -> None:
        records: list[JobRecord] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self._run(self.driver.topics.jobs(topic, state, cursor or None, limit))
            if isinstance(page, type):
                assert page == _answer(self.models[topic].counts)
                return
            records += page[0]
            cursor = page[1]
        wanted = self.models[topic].jobs.values() if state is None else self.models[topic].in_state(state)
        assert {record.id for record in records} == {job.id for job in wanted}
        often = {record.id for record in records if [other.id for other in records].count(record.id) > 1}
        assert often <= self.contents[topic].left_over_ids(self.models[topic])
        for record in records:
            self._is_as_modelled(record, self.models[topic].jobs[record.id])

    # Time

    @verb(2, seconds=moves)
    def move_clock(self, seconds: int) -> None:
        """The timer is late: it has not run."""
        self.driver.move_clock(seconds)
        for model in self.models.values():
            model.now_s += seconds

    @verb()
    def run_timer(self) -> None:
        self._run(self.driver.run_timer())
        for model in self.models.values():
            model.run_timer()

    @verb(3, seconds=moves)
    def pass_time(self, seconds: int) -> None:
        self.driver.move_clock(seconds)
        self._run(self.driver.run_timer())
        for model in self.models.values():
            model.now_s += seconds
            model.run_timer()

    @rule(call=_any_verb())
    def do(self, call: tuple[str, dict[str, Any]]) -> None:
        name, arguments = call
        if not self.out_of_time:
            try:
                getattr(self, name)(**arguments)
            except OutOfTimeError:
                self.out_of_time = True

    # What always holds

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if self.out_of_time:
            return
        try:
            for topic, model in self.models.items():
                before, self.contents[topic] = self.contents[topic], self._read(topic)
                self._check_places(self.contents[topic], model)
                if self.contents[topic] != before:
                    self._check_counts(self.contents[topic], model)
                self._check_jobs(before, self.contents[topic], model)
        except OutOfTimeError:
            self.out_of_time = True

    def _check_places(self, contents: Contents, model: JobModel) -> None:
        assert set(contents.pool) == set(model.jobs)
        for state, scores in contents.scores.items():
            assert set(scores) == {job.id for job in model.in_state(state)}
            for job_id, score in scores.items():
                model.jobs[job_id].exact_ms = score
        assert {job.id for job in model.in_state(JobState.READY)} <= set(contents.ready_list)
        waiting = {job.id: job for job in model.jobs.values() if job.first_delivery_until_s is not None}
        assert set(contents.expiry) == set(waiting)
        for job_id, job in waiting.items():
            self._is_when(contents.expiry[job_id], job.first_delivery_until_s)
        assert contents.holders == {job.id: job.consumer for job in model.jobs.values() if job.consumer}
        told = {_tombstone(whom): until_s for whom, until_s in model.told_cancelled.items()}
        assert set(contents.cancelled) == set(told)
        for member, until_s in told.items():
            self._is_when(contents.cancelled[member], until_s)
        work = [*contents.expiry.values(), *contents.cancelled.values()]
        work += [score for scores in contents.scores.values() for score in scores.values()]
        if work:
            assert contents.due_ms is not None
            assert contents.due_ms <= min(work), "the timer would come too late"

    def _check_counts(self, contents: Contents, model: JobModel) -> None:
        view = self._run(self.driver.topics.show(model.topic))
        expected = _answer(model.counts)
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
                assert contents.of_job(job_id) == before.of_job(job_id), "changed by what was done to others"
                continue
            if job is None and job_id not in before.pool:
                continue
            record = self._look(model.topic, job_id)
            if job is None:
                assert record is JobNotFound
                continue
            self._is_as_modelled(record, job)
            versions[job_id] = job.version

    def _is_as_modelled(self, record: JobRecord, job: ModelJob) -> None:
        assert record.state is job.state
        assert orjson.loads(record.body) == job.body
        assert record.attempts == job.attempts
        assert (record.ttr_ms, record.retain_ms) == (job.policy["ttr"] * 1000, job.policy["retain"] * 1000)
        assert (record.max_attempts or None) == job.policy["max_attempts"]
        assert (record.ttl_ms / 1000 or None) == job.policy["ttl"]
        assert record.effective_backoff == job.policy["backoff"]
        assert record.last_error == job.last_error or (record.last_error and job.last_error is SOME_TEXT)
        assert record.reason == job.reason
        assert record.reserved_by == job.consumer
        assert (None if record.result is None else orjson.loads(record.result)) == job.result
        self._is_when(record.due_at_ms, job.due_s)
        self._is_when(record.reserved_until_ms, job.lease_end_s if job.live is not None else None)
        self._is_when(record.finished_at_ms, job.finished_at_s)
        if job.live is not None and job.live.receipt is not None:
            assert record.receipt == job.live.receipt

    # Means

    def _new_body(self) -> dict[str, int]:
        self.bodies += 1
        return {"put": self.bodies}

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self.began_s) * 1000

    def _run(self, call: Coroutine[Any, Any, Result]) -> Any:
        """The call's answer, or the class of the error that it raised."""
        answer = self.runner.get_loop().run_until_complete(_error_or(call))
        if self._elapsed_ms() > LONGEST_S * 1000:
            raise OutOfTimeError
        return answer

    def _is_when(self, actual_ms: int | None, virtual_s: int | None) -> None:
        """The store's instant is the model's, give or take the real time that passes during an example."""
        if actual_ms is None or virtual_s is None:
            assert actual_ms == virtual_s
            return
        assert -1 <= actual_ms - self.began_ms - virtual_s * 1000 <= self._elapsed_ms() + 1

    def _look(self, topic: str, job_id: str) -> Any:
        return self._run(self.queue.look(topic, job_id))

    def _pop(self, topic: str, wanted: list[dict[str, Any]]) -> None:
        model = self.models[topic]
        early = self.contents[topic].left_over_ids(model)
        late = [job.id for job in model.in_state(JobState.READY) if model.is_late(job)]
        requests = [
            PopRequest(
                request["count"],
                None if request["ttr"] is None else request["ttr"] * 1000,
                request["consumer"],
                request["request_id"],
            )
            for request in wanted
        ]
        reply = self._run(self.queue.pop(topic, requests))
        expired = {job_id for job_id in late if self._look(topic, job_id).state is JobState.DEAD}
        for request, records in zip(wanted, reply.jobs, strict=True):
            deliveries = model.pop(
                request["count"],
                [record.id for record in records],
                ttr_s=request["ttr"],
                consumer=request["consumer"],
                request_id=request["request_id"],
                expired=expired,
                may_come_early=early,
            )
            for record, delivery in zip(records, deliveries, strict=True):
                self._note(topic, record, delivery)
            expired = set()
        if model.in_state(JobState.READY) and not model.paused:
            assert reply.more

    def _note(self, topic: str, record: JobRecord, delivery: Delivery) -> None:
        if delivery.receipt is None:
            seen = (topic, record.id, record.receipt)
            assert seen not in self.seen_receipts, "two deliveries with one receipt"
            self.seen_receipts.add(seen)
            self.deliveries[topic].append(delivery)
            delivery.receipt = record.receipt
        assert record.receipt == delivery.receipt
        assert record.request_id == delivery.request_id

    def _meant(self, topic: str, which: tuple[str, int]) -> tuple[str, Delivery]:
        """The id and the delivery that a consumer speaks of: a live one, an old one (maybe of another job), or none."""
        kind, number = which
        job_id = JOB_IDS[number % len(JOB_IDS)]
        if kind == "live":
            live = [job.live for job in self.models[topic].jobs.values() if job.live is not None]
            if live:
                delivery = live[number % len(live)]
                return delivery.job_id, delivery
        if kind == "old" and self.deliveries[topic]:
            delivery = self.deliveries[topic][-1 - number % len(self.deliveries[topic])]
            return delivery.job_id, delivery
        if kind == "none":
            return job_id, NO_DELIVERY
        return job_id, ANY_DELIVERY

    def _as_popped(self, topic: str, delivery: Delivery) -> JobRecord:
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

    def _read(self, topic: str) -> Contents:
        pool, delay, ready, reserved, dead, finished, expiry, holders, cancelled, settings_key, _, due = KEYS.of_topic(
            topic
        )
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(pool).lrange(ready, 0, -1).hgetall(holders).zscore(due, topic).hget(settings_key, topic)
        for key in (delay, reserved, dead, finished, expiry, cancelled):
            pipe.zrange(key, 0, -1, withscores=True)
        jobs, ready_list, names, due_ms, topic_settings, *sets = pipe.execute()
        scores = [{member.decode(): int(score) for member, score in members} for members in sets]
        return Contents(
            pool={job_id.decode(): raw for job_id, raw in jobs.items()},
            scores=dict(zip(_SCORED.values(), scores[:4], strict=True)),
            ready_list=[job_id.decode() for job_id in ready_list],
            expiry=scores[4],
            holders={job_id.decode(): name.decode() for job_id, name in names.items()},
            cancelled=scores[5],
            due_ms=None if due_ms is None else int(due_ms),
            settings=topic_settings,
        )


def _put_job(topic: str, put: dict[str, Any]) -> PutJob:
    return PutJob.model_validate(
        {
            "topic": topic,
            "id": put["job_id"],
            "body": put["body"],
            "delay": put["delay_s"],
            "on_conflict": put["on_conflict"],
            **put["policy"],
        }
    )


def _tombstone(whom: Delivery | str) -> str:
    if isinstance(whom, str):
        return whom
    return f"{whom.job_id} {whom.receipt.nonce} {whom.receipt.attempt}"


async def _error_or(call: Awaitable[Result]) -> Result | type[DeferdError]:
    try:
        return await call
    except DeferdError as exc:
        return type(exc)


def _answer(call: Callable[[], Any]) -> Any:
    """The model's answer, or the class of the error that it raised."""
    try:
        return call()
    except DeferdError as exc:
        return type(exc)


@pytest.mark.timeout(240)
def test_the_engine_does_what_the_model_does(running_server: StoreServer) -> None:
    machine = type("EngineAndModelOnServer", (EngineAndModel,), {"server": running_server})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=150, stateful_step_count=40, deadline=None, print_blob=True),
    )


ANY_DELIVERY.receipt = ANY_RECEIPT
NO_DELIVERY.receipt = IMPOSSIBLE_RECEIPT
