"""The checker of the outbox's fault runs finds each kind of broken promise, and no other."""

from __future__ import annotations

import pytest

from tests.faults.outbox.checker import Delivered, Key, StoredJob, check_delivered_jobs, check_waiting_jobs
from tests.faults.outbox.journal import Committed, Due

KEY: Key = ("later", "a")
DUE, MOVED = Due(1000, 1004), Due(9000, 9000)


def put(number: int, began_s: float, ended_s: float, *, replaces: bool = False) -> Committed:
    return Committed(number, 1, "put", *KEY, began_s, ended_s, number, replaces, "t", DUE)


def call(verb: str, began_s: float, ended_s: float) -> Committed:
    key = (None, None) if verb == "cancel_tag" else KEY
    return Committed(round(1000 * began_s), 1, verb, *key, began_s, ended_s, tag="t", due=MOVED)


def job(number: int, due_ms: float = 1002) -> StoredJob:
    return StoredJob(number, "delayed", due_ms)


@pytest.mark.parametrize(
    ("calls", "right", "wrong"),
    [
        ([put(1, 0, 1)], [job(1)], [None, job(2), job(1, 2000), StoredJob(1, "ready", 1002)]),
        ([put(1, 0, 1), put(2, 2, 3)], [job(1)], [None, job(2)]),
        ([put(1, 0, 1), put(2, 2, 3, replaces=True)], [job(2)], [None, job(1)]),
        ([put(1, 0, 1), call("cancel", 2, 3)], [None], [job(1)]),
        ([put(1, 0, 1), call("cancel_tag", 2, 3)], [None], [job(1)]),
        ([call("cancel", 0, 1), put(1, 2, 3)], [job(1)], [None]),
        ([put(1, 0, 1), call("cancel", 2, 3), put(2, 4, 5)], [job(2)], [None, job(1)]),
        ([put(1, 0, 1), call("reschedule", 2, 3)], [job(1, 9000)], [None, job(1)]),
        # the commits overlapped
        ([put(1, 0, 3), call("cancel", 2, 4)], [None, job(1)], [job(2)]),
        ([put(1, 0, 3), put(2, 2, 4), call("cancel", 5, 6)], [None], [job(1), job(2)]),
        ([put(1, 0, 9), call("cancel", 1, 2), call("reschedule", 3, 4)], [None, job(1), job(1, 9000)], [job(2)]),
    ],
)
def test_an_id_must_have_what_an_order_of_its_commits_leaves(
    calls: list[Committed], right: list[StoredJob | None], wrong: list[StoredJob | None]
) -> None:
    for stored, is_right in [*((one, True) for one in right), *((one, False) for one in wrong)]:
        findings = check_waiting_jobs(calls, {} if stored is None else {KEY: stored})
        assert (findings.wrong == []) == is_right, stored


def test_calls_of_one_transaction_keep_their_order() -> None:
    first = put(1, 0, 1)
    then = call("cancel", 0, 1)._replace(transaction=first.transaction, step=2)
    assert check_waiting_jobs([first, then], {}).wrong == []
    assert check_waiting_jobs([first, then], {KEY: job(1)}).wrong != []


def test_a_job_of_no_committed_put_is_found() -> None:
    assert len(check_waiting_jobs([put(1, 0, 1)], {KEY: job(1), ("later", "b"): job(2)}).wrong) == 1


@pytest.mark.parametrize(
    ("delivered", "state", "wrong"),
    [
        ([Delivered(1, 1)], "finished", 0),
        ([Delivered(1, 1), Delivered(1, 2)], "finished", 0),  # after a lost response
        ([], "finished", 1),
        ([Delivered(1, 1), Delivered(1, 1)], "finished", 1),  # put again after its end
        ([Delivered(1, 1), Delivered(2, 2)], "finished", 1),
        ([Delivered(3, 1)], "finished", 1),
        ([Delivered(1, 1)], "ready", 1),
    ],
)
def test_jobs_that_were_due_at_once_are_delivered_as_one_job(
    delivered: list[Delivered], state: str, wrong: int
) -> None:
    calls = [put(1, 0, 1), put(2, 2, 3)]
    kept = {KEY: StoredJob(1, state, 0)}
    assert len(check_delivered_jobs(calls, {KEY: delivered}, kept, "later").wrong) == wrong


def test_a_delivery_of_no_committed_put_is_found() -> None:
    findings = check_delivered_jobs([], {KEY: [Delivered(1, 1)]}, {}, "kept")
    assert len(findings.wrong) == 1
