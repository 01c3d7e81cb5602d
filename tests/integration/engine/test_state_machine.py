"""The engine against its plain model in job_model.py, over all transitions in any order."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected, Select
from deferd.contract.errors import DeferdError, JobNotFound
from deferd.contract.model import CancelItem, ChangeJob, FinishItem, JobState, JobToReturn, PutJob, TopicSettings
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.deliveries import Released
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.script_arguments import PutBounds
from tests.drawn_input import counted
from tests.integration.engine import drawn_calls as drawn
from tests.integration.engine.drawn_calls import TOPICS
from tests.integration.engine.engine_and_model import EngineAndModel, OutOfTimeError, receipt_of, result_of
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.engine.job_model import JobModel
from tests.integration.engine.modelled_job import ANY_DELIVERY, NO_DELIVERY, Delivery
from tests.integration.engine.modelled_puts import MOST_BODY_BYTES
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs
from tests.integration.store.store_servers import StoreServer

BOUNDS = PutBounds(body_bytes=MOST_BODY_BYTES)


class EveryCall(EngineAndModel):
    """All calls, in any order."""

    calls = 0
    may_have_flows = True
    may_have_ends = True
    has_flows = False
    """Whether jobs of this example may have groups and priorities, and topics limits."""

    @initialize(limits=st.none() | drawn.limits | drawn.limits, many=st.lists(drawn.puts, max_size=6))
    def begin(self, limits: dict[str, Any] | None, many: list[dict[str, Any]]) -> None:
        self.has_flows = self.may_have_flows and limits is not None
        if self.has_flows:
            self.make(("set_topic", {"topic": TOPICS[0], "values": {"limits": limits}}))
        self.make(("put_many", {"topic": TOPICS[0], "many": many}))

    # Producers

    @drawn.verb(4, topic=drawn.topics, puts=st.lists(drawn.puts, min_size=1, max_size=3))
    def put(self, topic: str, puts: list[dict[str, Any]]) -> None:
        puts = [{**put, "body": self.new_body()} for put in puts]
        results = self.run_together([self.engine.puts.put(_put_job(topic, put), BOUNDS) for put in puts])
        for put, actual in zip(puts, results, strict=True):
            expected = result_of(partial(self.models[topic].put, **put))
            if isinstance(actual, type) or isinstance(expected, type):
                assert actual == expected
                continue
            assert actual.outcome == expected.outcome
            assert actual.record.is_follow_up == (self.models[topic].jobs[put["job_id"]] is not expected.job)
            self.is_as_modelled(actual.record, expected.job, last_item_only=put["on_conflict"] == "append")

    @drawn.verb(3, topic=drawn.topics, many=st.lists(drawn.puts, min_size=2, max_size=6))
    def put_many(self, topic: str, many: list[dict[str, Any]]) -> None:
        many = [{**put, "body": self.new_body()} for put in many]
        actual = self.run(self.engine.puts.put_many([_put_job(topic, put) for put in many], BOUNDS))
        assert [result.code for result in actual] == self.models[topic].put_many(many)

    @drawn.verb(
        2,
        topic=drawn.topics,
        which=drawn.jobs,
        changes=drawn.policies,
        delay=st.none() | drawn.delays,
        new_body=st.booleans(),
    )
    def change(
        self, topic: str, which: tuple[str, int], changes: dict[str, Any], delay: int | None, new_body: bool
    ) -> None:
        job_id, _ = self.target_of(topic, which)
        if new_body:
            changes = {**changes, "body": self.new_body()}
        wanted = ChangeJob.model_validate({**changes, "delay": delay})
        actual = self.run(self.queue.change(topic, job_id, wanted))
        expected = result_of(lambda: self.models[topic].change(job_id, changes, delay_s=delay))
        if isinstance(actual, JobRecord):
            assert expected is None
            self.is_as_modelled(actual, self.models[topic].jobs[job_id])
        else:
            assert actual == expected

    @drawn.verb(
        2,
        topic=drawn.topics,
        which=st.lists(st.tuples(drawn.jobs, st.booleans()), min_size=1, max_size=4),
        keep=st.booleans(),
    )
    def cancel(self, topic: str, which: list[tuple[tuple[str, int], bool]], keep: bool) -> None:
        targets = [(self.target_of(topic, pick)[0], refuse) for pick, refuse in which]
        cancels = [
            self.engine.cancels.cancel(topic, job_id, refuse_reserved=refuse, keep_follow_up=keep)
            for job_id, refuse in targets
        ]
        actual = self.run_together(cancels)
        assert actual == self._expected_cancels(topic, targets, keep)

    @drawn.verb(
        topic=drawn.topics,
        which=st.lists(st.tuples(drawn.jobs, st.booleans()), min_size=2, max_size=4),
        keep=st.booleans(),
    )
    def cancel_many(self, topic: str, which: list[tuple[tuple[str, int], bool]], keep: bool) -> None:
        targets = [(self.target_of(topic, pick)[0], refuse) for pick, refuse in which]
        follow_up: Literal["keep", "cancel"] = "keep" if keep else "cancel"
        items = [
            CancelItem(id=job_id, if_reserved="refuse" if refuse else "cancel", follow_up=follow_up)
            for job_id, refuse in targets
        ]
        actual = self.run(self.engine.cancels.cancel_many(topic, items))
        expected = self._expected_cancels(topic, targets, keep)
        assert [result.was or result.code for result in actual] == [getattr(one, "code", one) for one in expected]

    def _expected_cancels(self, topic: str, targets: list[tuple[str, bool]], keep: bool) -> list[Any]:
        cancel = partial(self.models[topic].cancel, keep_follow_up=keep)
        return [result_of(partial(cancel, job_id, refuse_reserved=refuse)) for job_id, refuse in targets]

    @drawn.verb(2, topic=drawn.topics, which=drawn.selections, everywhere=st.booleans(), refuse=st.booleans())
    def cancel_all(self, topic: str, which: tuple[str | None, JobState | None], everywhere: bool, refuse: bool) -> None:
        select, models, was = self.selection(topic, which, everywhere)
        call = CancelSelected(select=select, if_reserved="refuse" if refuse else "cancel", request_id=self.new_id())
        actual = self.run(self.driver.engine.bulk.cancel(call))
        done = sum(model.cancel_all(model.selected(*which), refuse_reserved=refuse) for model in models)
        assert actual == BulkOutcome(was.total(), done, dict(was), True)
        assert self.run(self.driver.engine.bulk.cancel(call)) == actual, "repeated"

    @drawn.verb(
        3,
        topic=drawn.topics,
        which=drawn.selections,
        everywhere=st.booleans(),
        by=st.sampled_from([None, 10, -10, 60, -60]),
        delay=drawn.delays,
    )
    def reschedule_all(
        self, topic: str, which: tuple[str | None, JobState | None], everywhere: bool, by: int | None, delay: int
    ) -> None:
        select, models, was = self.selection(topic, which, everywhere)
        call = RescheduleSelected(select=select, by=by, delay=delay if by is None else None, request_id=self.new_id())
        actual = self.run(self.driver.engine.bulk.reschedule(call))
        done = 0
        for model in models:
            jobs = model.selected(*which)
            if by is not None and by > 0 and which[1] is JobState.DELAYED:
                jobs.reverse()
            done += model.reschedule_all(jobs, by_s=by, delay_s=delay)
        assert actual == BulkOutcome(was.total(), done, dict(was), True)
        assert self.run(self.driver.engine.bulk.reschedule(call)) == actual, "repeated"

    def selection(
        self, topic: str, which: tuple[str | None, JobState | None], everywhere: bool
    ) -> tuple[Select, list[JobModel], Counter[JobState]]:
        """The selection, the models of its topics, and its jobs by their states."""
        tag, state = which
        select = Select.model_validate({"tag": tag, "state": state, "topics": ["b*", "o*"] if everywhere else [topic]})
        models = list(self.models.values()) if everywhere else [self.models[topic]]
        return select, models, Counter(job.state for model in models for job in model.selected(tag, state))

    def new_id(self) -> str:
        self.calls += 1
        return f"call-{self.calls}"

    # Consumers

    @drawn.verb(
        8,
        topic=drawn.topics,
        count=st.sampled_from([1, 1, 2, 3]),
        consumer=drawn.consumers,
        ttr_ms=drawn.leases_ms,
        request_id=drawn.request_ids,
    )
    def pop(self, topic: str, count: int, consumer: str | None, ttr_ms: int | None, request_id: str | None) -> None:
        self.hand_out(topic, [PopRequest(count, ttr_ms, consumer, request_id)])

    @drawn.verb(
        3,
        topic=drawn.topics,
        requests=st.lists(st.tuples(st.integers(1, 2), drawn.request_ids, drawn.consumers), min_size=2, max_size=3),
        late_s=drawn.delays_of_timer,
    )
    def pop_for_several(self, topic: str, requests: list[tuple[int, str | None, str | None]], late_s: int) -> None:
        """Pop for several consumers in one call, as the dispatcher does; the timer is late by `late_s`."""
        self.move_clock(late_s)
        self.hand_out(
            topic, [PopRequest(count, None, consumer, request_id) for count, request_id, consumer in requests]
        )

    @drawn.verb(2, topic=drawn.topics, count=st.integers(1, 2), consumer=drawn.consumers, late_s=drawn.delays_of_timer)
    def pop_again(self, topic: str, count: int, consumer: str | None, late_s: int) -> None:
        """Repeat a request that still holds jobs, if there is one."""
        self.move_clock(late_s)
        model = self.models[topic]
        request_id = next(filter(model.earlier_deliveries, drawn.REQUEST_IDS), drawn.REQUEST_IDS[0])
        self.hand_out(topic, [PopRequest(count, None, consumer, request_id)])

    @drawn.verb(
        3,
        pattern=drawn.patterns,
        count=st.integers(1, 4),
        consumer=drawn.consumers,
        ttr_ms=drawn.leases_ms,
        request_id=drawn.request_ids,
        late_s=drawn.delays_of_timer,
    )
    def pop_by_pattern(self, pattern: str, late_s: int, **request: Any) -> None:
        self.move_clock(late_s)
        self.hand_out_by_pattern(pattern, **request)

    @drawn.verb(2, topic=drawn.topics, which=st.lists(drawn.receipts, min_size=1, max_size=3))
    def return_popped(self, topic: str, which: list[tuple[str, int]]) -> None:
        deliveries = [self.target_of(topic, pick)[1] for pick in which]
        deliveries = [delivery for delivery in deliveries if delivery.job_id]
        actual = self.run(
            self.engine.held_jobs.return_popped([self.as_popped(topic, delivery) for delivery in deliveries])
        )
        assert actual == self.models[topic].return_popped(deliveries)

    @drawn.verb(2, topic=drawn.topics, which=st.lists(drawn.receipts, min_size=1, max_size=3), consumer=drawn.consumers)
    def return_many(self, topic: str, which: list[tuple[str, int]], consumer: str | None) -> None:
        targets = [self.target_of(topic, pick) for pick in which]
        jobs = [
            JobToReturn(id=job_id, receipt=None if delivery is ANY_DELIVERY else str(receipt_of(delivery)))
            for job_id, delivery in targets
        ]
        actual = self.run(self.engine.held_jobs.return_many(topic, jobs, consumer))
        return_one = self.models[topic].return_one
        expected = [result_of(partial(return_one, *one, consumer)) for one in reversed(targets)]
        assert [result.code for result in actual] == [error and error.code for error in reversed(expected)]

    @drawn.verb(topic=drawn.topics, which=drawn.receipts, result=st.sampled_from([None, {"paid": [True]}]))
    def finish(self, topic: str, which: tuple[str, int], result: Any) -> None:
        job_id, delivery = self.target_of(topic, which)
        actual = self.run(self.queue.finish(topic, job_id, receipt_of(delivery), result))
        assert actual == result_of(lambda: self.models[topic].finish(job_id, delivery, result))

    @drawn.verb(topic=drawn.topics, which=st.lists(drawn.receipts, min_size=2, max_size=3))
    def finish_many(self, topic: str, which: list[tuple[str, int]]) -> None:
        targets = [self.target_of(topic, pick) for pick in which]
        items = [
            FinishItem(id=job_id, receipt=None if delivery is ANY_DELIVERY else str(receipt_of(delivery)))
            for job_id, delivery in targets
        ]
        actual = self.run(self.queue.finish_many(topic, items))
        expected = [result_of(partial(self.models[topic].finish, *one)) for one in targets]
        assert [result.code for result in actual] == [error and error.code for error in expected]

    @drawn.verb(2, topic=drawn.topics, which=drawn.receipts, puts=drawn.chained, result=st.sampled_from([None, 7]))
    def finish_and_put(
        self, topic: str, which: tuple[str, int], puts: list[tuple[str, dict[str, Any]]], result: Any
    ) -> None:
        job_id, delivery = self.target_of(topic, which)
        puts = [(of, {**put, "body": self.new_body()}) for of, put in puts]
        jobs = [_put_job(of, put) for of, put in puts]
        actual = self.run(
            self.queue.finish_and_put(topic, job_id, receipt_of(delivery), jobs, result=result, bounds=BOUNDS)
        )
        expected = self._expect_finish_and_put(topic, job_id, delivery, puts, result)
        if isinstance(actual, list):
            actual = [(one.topic, one.id, one.status) for one in actual]
        assert actual == expected or self.may_be_instead(actual, expected, topic, job_id)

    def may_be_instead(self, _actual: Any, _expected: Any, _topic: str, _job_id: str) -> bool:
        """Whether a finish that puts jobs may do that."""
        return False

    def _expect_finish_and_put(
        self, topic: str, job_id: str, delivery: Delivery, puts: list[tuple[str, dict[str, Any]]], result: Any
    ) -> Any:
        """The results of the puts, or the error; then nothing has changed in the models."""
        ends = result_of(lambda: self.models[topic].may_finish(job_id, delivery))
        if ends is not True:
            return ends or []
        same = {id(one): one for one in (ANY_DELIVERY, NO_DELIVERY)}
        trial, trial_delivery = copy.deepcopy((self.models, delivery), same)
        outcome = _chain(trial, topic, (job_id, trial_delivery, result), puts)
        return outcome if isinstance(outcome, type) else _chain(self.models, topic, (job_id, delivery, result), puts)

    @drawn.verb(
        4,
        topic=drawn.topics,
        which=st.lists(
            st.tuples(drawn.receipts, drawn.waits, drawn.errors, drawn.are_attempts), min_size=1, max_size=4
        ),
    )
    def release(self, topic: str, which: list[tuple[tuple[str, int], int | None, str | None, bool]]) -> None:
        calls, models = [], []
        for pick, delay, error, counts in which:
            job_id, delivery = self.target_of(topic, pick)
            delay_s = delay if counts else 10
            delay_ms = None if delay_s is None else delay_s * 1000
            receipt = receipt_of(delivery)
            calls.append(
                self.engine.deliveries.release(topic, job_id, receipt, delay_ms=delay_ms, error=error, counts=counts)
            )
            release = self.models[topic].release
            models.append(partial(release, job_id, delivery, delay_s=delay_s, error=error, counts=counts))
        for actual, expected in zip(self.run_together(calls), map(result_of, models), strict=True):
            if isinstance(actual, Released):
                state, due_s, attempts = expected
                assert (actual.state, actual.attempts) == (state, attempts)
                self.assert_same_instant(actual.due_at_ms, due_s)
            else:
                assert actual == expected

    @drawn.verb(topic=drawn.topics, which=st.lists(st.tuples(drawn.receipts, drawn.leases_ms), min_size=1, max_size=3))
    def touch(self, topic: str, which: list[tuple[tuple[str, int], int | None]]) -> None:
        calls, models = [], []
        for pick, ttr_ms in which:
            job_id, delivery = self.target_of(topic, pick)
            calls.append(self.engine.deliveries.touch(topic, job_id, receipt_of(delivery), ttr_ms=ttr_ms))
            ttr_s = None if ttr_ms is None else ttr_ms // 1000
            models.append(partial(self.models[topic].touch, job_id, delivery, ttr_s=ttr_s))
        for actual, expected in zip(self.run_together(calls), map(result_of, models), strict=True):
            if isinstance(actual, int):
                self.assert_same_instant(actual, expected)
            else:
                assert actual == expected

    @drawn.verb(topic=drawn.topics, which=st.lists(st.tuples(drawn.receipts, drawn.errors), min_size=1, max_size=3))
    def bury(self, topic: str, which: list[tuple[tuple[str, int], str | None]]) -> None:
        targets = [(*self.target_of(topic, pick), error) for pick, error in which]
        bury = self.engine.deliveries.bury
        actual = self.run_together([bury(topic, job_id, receipt_of(of), error=error) for job_id, of, error in targets])
        model = self.models[topic]
        assert actual == [result_of(partial(model.bury, job_id, of, error=error)) for job_id, of, error in targets]

    # Operators

    @drawn.verb(topic=drawn.topics, limit=st.integers(1, 3))
    def redrive_some(self, topic: str, limit: int) -> None:
        dead = [job.id for job in self.models[topic].in_state(JobState.DEAD)]
        actual = self.run(redrive_jobs(self.driver.engine, topic, limit=limit))
        redriven = [job_id for job_id in dead if self.get_job(topic, job_id).state is JobState.READY]
        assert actual == result_of(lambda: self.models[topic].redrive_some(limit, redriven))

    @drawn.verb(topic=drawn.topics, ids=st.lists(drawn.job_ids, min_size=1, max_size=4))
    def redrive_ids(self, topic: str, ids: list[str]) -> None:
        actual = self.run(redrive_jobs(self.driver.engine, topic, ids))
        assert actual == result_of(lambda: self.models[topic].redrive_ids(ids))

    @drawn.verb(topic=drawn.topics, state=drawn.states)
    def purge(self, topic: str, state: JobState | None) -> None:
        actual = self.run(purge_jobs(self.driver.engine, topic, state))
        assert actual == result_of(lambda: self.models[topic].purge(state))

    @drawn.verb(2, topic=drawn.topics, values=drawn.topic_settings)
    def set_topic(self, topic: str, values: dict[str, Any]) -> None:
        view = self.run(self.driver.topics.set(topic, TopicSettings.model_validate(values)))
        self.models[topic].set_topic(values)
        assert view.settings == TopicSettings.model_validate(values | self.kept_settings(topic))

    def kept_settings(self, _topic: str) -> dict[str, Any]:
        """The settings of a topic that stay as they are unless they are given."""
        return {}

    @drawn.verb(topic=drawn.topics, paused=st.sampled_from([False, False, False, False, True]))
    def pause(self, topic: str, paused: bool) -> None:
        verb = self.driver.topics.pause if paused else self.driver.topics.resume
        view = self.run(verb(topic))
        expected = result_of(lambda: self.models[topic].pause(paused))
        assert (view if isinstance(view, type) else view.paused) == expected

    @drawn.verb(topic=drawn.topics, state=drawn.states, limit=st.integers(1, 3))
    def list_jobs(self, topic: str, state: JobState | None, limit: int) -> None:
        records: list[JobRecord] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self.run(self.driver.topics.jobs(topic, state, cursor or None, limit))
            if isinstance(page, type):
                assert page == result_of(self.models[topic].counts)
                return
            records += page[0]
            cursor = page[1]
        wanted = self.models[topic].jobs.values() if state is None else self.models[topic].in_state(state)
        assert sorted(record.id for record in records) == sorted(job.id for job in wanted)
        for record in records:
            self.is_as_modelled(record, self.models[topic].jobs[record.id])

    # Time

    @drawn.verb(2, seconds=drawn.moves)
    def move_clock(self, seconds: int) -> None:
        """Move the clock without running the timer: the timer is late."""
        self.driver.move_clock(seconds)
        for model in self.models.values():
            model.now_s += seconds

    @drawn.verb()
    def run_timer(self) -> None:
        self.run(self.driver.run_timer())
        for model in self.models.values():
            model.run_timer()

    @drawn.verb(3, seconds=drawn.moves)
    def pass_time(self, seconds: int) -> None:
        self.driver.move_clock(seconds)
        self.run(self.driver.run_timer())
        for model in self.models.values():
            model.now_s += seconds
            model.run_timer()

    @rule(call=drawn.any_verb())
    def do(self, call: tuple[str, dict[str, Any]]) -> None:
        self.make(call)

    def make(self, call: tuple[str, dict[str, Any]]) -> None:
        name, arguments = call
        if not self.has_flows:
            arguments = drawn.without(drawn.FLOW_FIELDS, arguments)
        if not self.may_have_ends:
            arguments = drawn.without({"on_end"}, arguments)
        if not self.out_of_time:
            try:
                getattr(self, name)(**arguments)
            except OutOfTimeError:
                self.out_of_time = True


def _chain(
    models: dict[str, JobModel], topic: str, finish: tuple[str, Delivery, Any], puts: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, str, int]] | type[DeferdError]:
    """Finish and put as the script does: topic by topic, in the order of their first jobs."""
    finished = models[topic].jobs[finish[0]]
    ended = finished.live
    models[topic].finish(*finish)
    results = {}
    for of in dict.fromkeys(of for of, _ in puts):
        for index, (one_topic, put) in enumerate(puts):
            if one_topic == of:
                outcome = result_of(partial(models[of].put, **put))
                if isinstance(outcome, type):
                    return outcome
                is_new = outcome.outcome in {"created", "follow_up"}
                results[index] = (of, str(put["job_id"]), 201 if is_new else 200)
    present = models[topic].jobs.get(finish[0])
    if present is not None and present is not finished and present.took_place_of is None:
        present.took_place_of = ended
    return [results[index] for index in range(len(puts))]


def _put_job(topic: str, put: dict[str, Any]) -> PutJob:
    fields = {"job_id": "id", "delay_s": "delay"}
    options = {fields.get(name, name): value for name, value in put.items() if name != "policy" and value is not None}
    return PutJob.model_validate({"topic": topic, **options, **put["policy"]})


def run_machine(machine: type[EveryCall], server: StoreServer, examples: int) -> None:
    """Compare random calls on a store with the model, `examples` times."""
    run_state_machine_as_test(
        type("OnServer", (machine,), {"server": server}),
        settings=settings(
            max_examples=counted(examples),
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],  # others use the machine
            phases=[phase for phase in Phase if phase is not Phase.explain],  # it would trace every line, for minutes
        ),
    )


@pytest.mark.hypothesis
def test_the_engine_does_what_the_model_does(running_server: StoreServer) -> None:
    run_machine(EveryCall, running_server, 120)


# Minimal examples of what the machine found or rarely reaches


async def test_a_repeated_request_leaves_expired_jobs_to_those_that_take_new_ones(driver: EngineDriver) -> None:
    await driver.put("given")
    first = await driver.pop(1, request_id="r1")
    await driver.put("expired", ttl=10)
    driver.move_clock(11)
    await driver.put("new")
    assert await driver.pop(1, request_id="r1") == first
    assert driver.ready_list() == ["expired", "new"]
    reply = await driver.queue.pop(TOPIC, [PopRequest(1, request_id="r1"), PopRequest(1)])
    assert [[popped.id for popped in jobs] for jobs in reply.jobs] == [["given"], ["new"]]
    assert await driver.state("expired") is JobState.DEAD


async def test_a_call_without_receipt_does_not_get_an_earlier_jobs_cancel(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    await driver.put()
    await driver.queue.finish(TOPIC, "a", (await driver.pop_one()).receipt)
    with pytest.raises(JobNotFound):
        await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)


async def test_returned_jobs_are_listed_page_by_page(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    await driver.held_jobs.return_popped(await driver.pop(3))
    listed, cursor = [], None
    for _ in range(3):
        page, cursor = await driver.topics.jobs(TOPIC, JobState.READY, cursor, limit=1)
        listed += [record.id for record in page]
    assert (listed, cursor) == (["a", "b", "c"], None)


async def test_a_ready_job_is_listed_once_also_over_pages(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    await driver.cancels.cancel(TOPIC, "b")
    await driver.put("b")
    listed, cursor = await driver.topics.jobs(TOPIC, JobState.READY, limit=2)
    rest, _ = await driver.topics.jobs(TOPIC, JobState.READY, cursor, limit=2)
    assert [record.id for record in listed + rest] == ["a", "c", "b"]
