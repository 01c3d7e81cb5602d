"""What the store knows of a job that has not run, and the reasons made of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from deferd.api.responses import JsonResponse
from deferd.api.routes.inspection import explanation
from deferd.contract.model import PutJob, TopicSettings
from deferd.contract.operations.push import SetPush
from deferd.contract.timestamps import instant
from deferd.engine.inspection.consumers import TopicActivity
from deferd.engine.inspection.job_facts import MissingJob, nearest
from deferd.engine.push_store import OPENS_AFTER
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.sweeping import redrive_jobs

NOW_ISH = 1.0


async def why(driver: EngineDriver, job_id: str = "a", activity: TopicActivity | None = None) -> dict[str, Any]:
    found = explanation(TOPIC, job_id, await driver.topics.why(TOPIC, job_id), activity)
    shown: dict[str, Any] = orjson.loads(JsonResponse(found).body)
    return shown


async def reasons(
    driver: EngineDriver, job_id: str = "a", activity: TopicActivity | None = None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await why(driver, job_id, activity))["reasons"]
    assert all(reason["text"].endswith(".") for reason in found)
    return found


async def reason(driver: EngineDriver, job_id: str = "a") -> dict[str, Any]:
    [only] = await reasons(driver, job_id)
    return only


async def test_a_delayed_job_is_not_due(driver: EngineDriver) -> None:
    job = await driver.put(delay=1800)
    found = await reason(driver)
    assert (await why(driver))["state"] == "delayed"
    assert found["code"] == "not_due"
    assert found["due_in"] == pytest.approx(1800, abs=NOW_ISH)
    assert found["text"].startswith("It is due in ")
    assert (await driver.queue.get(TOPIC, "a")).due_at_ms == job.due_at_ms


async def test_a_job_that_the_timer_has_not_moved_yet_is_due_since(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    driver.move_clock(8)
    found = await reason(driver)
    assert (found["code"], found["due_in"]) == ("not_due", pytest.approx(-3, abs=NOW_ISH))
    assert " ago (" in found["text"]


async def test_a_snoozed_job_is_not_due(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", ANY_RECEIPT, delay_ms=5000, counts=False)
    found = await reason(driver)
    assert (found["code"], found["snoozes"]) == ("not_due", 1)


async def test_a_released_job_waits_for_its_backoff(driver: EngineDriver) -> None:
    await driver.put(max_attempts=3, backoff={"kind": "fixed", "seconds": 30})
    await driver.pop_one(consumer="worker-1")
    await driver.deliveries.release(TOPIC, "a", ANY_RECEIPT, error="502 from the payment service\nTraceback ...")
    found = await reason(driver)
    assert {name: found[name] for name in ("code", "attempt", "max_attempts", "how", "by")} == {
        "code": "backoff", "attempt": 1, "max_attempts": 3, "how": "released", "by": "worker-1"
    }  # fmt: skip
    assert found["due_in"] == pytest.approx(30, abs=NOW_ISH)
    assert 'Attempt 1 of 3 failed with "502 from the payment service"; the next is due in' in found["text"]


async def test_a_pause_comes_first_with_its_beginning_and_who_asked(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("later", delay=60)
    await driver.topics.pause(TOPIC, "ops")
    driver.move_clock(100)
    await driver.topics.pause(TOPIC, "somebody-else")
    found = await reasons(driver)
    assert [one["code"] for one in found] == ["paused", "behind"]
    assert found[0]["by"] == "ops"
    assert found[0]["text"].startswith(f"Topic {TOPIC} has been paused for 1m 4")
    assert [one["code"] for one in await reasons(driver, "later")] == ["not_due", "paused"]
    view = await driver.topics.set(TOPIC, TopicSettings(ttr=30))
    assert (view.paused, view.pause and view.pause.by) == (True, "ops"), "settings do not end a pause"
    view = await driver.topics.resume(TOPIC)
    assert (view.paused, view.pause) == (False, None)
    assert orjson.loads(driver.server.command("HGET", "deferd:{0}:settings", TOPIC)) == {"po": {"t": 30000}}


async def test_a_pause_of_an_earlier_version_has_no_beginning(driver: EngineDriver) -> None:
    await driver.put("a")
    driver.server.command("HSET", "deferd:{0}:settings", TOPIC, '{"p":1}')
    [paused, _] = await reasons(driver)
    assert paused == {
        "code": "paused",
        "text": f"Topic {TOPIC} has been paused: it hands out no jobs.",
    }
    await driver.topics.pause(TOPIC, "ops")
    assert (await reasons(driver))[0] == paused


async def test_a_ready_job_is_behind_others(driver: EngineDriver) -> None:
    for number in range(5):
        await driver.put(f"j{number}")
        driver.move_clock(10)
    found = await reason(driver, "j3")
    assert {name: found[name] for name in ("code", "jobs_ahead", "ready")} == {
        "code": "behind", "jobs_ahead": 3, "ready": 5
    }  # fmt: skip
    assert found["oldest_age"] == pytest.approx(50, abs=NOW_ISH)
    assert "rate" not in found
    first = await reason(driver, "j0")
    assert (first["jobs_ahead"], first["text"]) == (0, "It is the next job of its topic.")
    [found] = await reasons(driver, "j3", TopicActivity(True, None, 2.0))
    assert (found["rate"], found["estimated_wait"]) == (2.0, 2.0)
    assert "consumers take 2 jobs a second; so it may take 2s" in found["text"]
    [found] = await reasons(driver, "j3", TopicActivity(True, None, 0.0))
    assert (found["rate"], "estimated_wait" in found) == (0.0, False)


async def test_a_ready_job_without_consumers(driver: EngineDriver) -> None:
    await driver.put()
    found = await reasons(driver, activity=TopicActivity(False, None, None))
    assert [one["code"] for one in found] == ["no_consumers", "behind"]
    assert "since" not in found[0]
    found = await reasons(driver, activity=TopicActivity(False, 1_760_000_000_000, None))
    assert found[0]["since"] == "2025-10-09T08:53:20.000Z"


async def test_a_job_of_a_pushed_topic_waits_for_the_target(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("later", delay=600)
    push = {"url": "https://hooks.example.com/", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}
    await driver.engine.push.set(TOPIC, SetPush.model_validate(push))
    first, second = await reasons(driver)
    assert (first["code"], second["code"]) == ("push", "behind")
    assert (first["circuit"], first["failures"], first["in_flight"]) == ("closed", 0, 0)
    assert "error" not in first
    assert [one["code"] for one in await reasons(driver, "later")] == ["not_due"]
    for _ in range(OPENS_AFTER):
        await driver.engine.push.note_failure(TOPIC, "HTTP 502", is_probe=False, pause_ms=60_000)
    found, _ = await reasons(driver)
    assert (found["circuit"], found["failures"], found["error"]) == ("open", OPENS_AFTER, "HTTP 502")
    assert {"ended_at", "next_try_at"} <= set(found)
    assert "failed 5 times in a row, the last time " in found["text"]
    assert 'with "HTTP 502"; the circuit is open, and the next try is in ' in found["text"]
    assert [one["code"] for one in await reasons(driver, "later")] == ["not_due", "push"]
    driver.move_clock(61)
    found, _ = await reasons(driver)
    assert (found["circuit"], "next_try_at" in found) == ("half_open", False)
    taken = await driver.engine.push.take(TOPIC, under_way=0, most=1, timeout_ms=5000)
    assert taken is not None
    assert "The push of the topic (push-" in (await reasons(driver))[0]["text"]


async def test_a_held_job_is_leased(driver: EngineDriver) -> None:
    await driver.put(ttr=60)
    await driver.pop_one(consumer="worker-1")
    found = await reason(driver)
    assert {name: found[name] for name in ("code", "by", "attempt")} == {
        "code": "leased", "by": "worker-1", "attempt": 1
    }  # fmt: skip
    assert found["lease_left"] == pytest.approx(60, abs=NOW_ISH)
    assert found["text"].startswith("worker-1 has held it for ")
    assert found["since"] == instant((await driver.queue.get(TOPIC, "a")).reserved_since_ms or 0)
    await driver.put(on_conflict="replace", if_reserved="after")
    assert (await reason(driver))["follow_up"] is True
    driver.move_clock(90)
    assert "the lease of attempt 1 ended " in (await reason(driver))["text"]


async def test_a_held_job_says_how_often_it_was_touched(driver: EngineDriver) -> None:
    """Its delivery, not an earlier one; and nothing is left of the count when the lease would have ended."""
    await driver.put(ttr=30)
    await driver.pop_one()
    assert (await reason(driver))["touches"] == 0
    for _ in range(3):
        await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT)
    found = await reason(driver)
    assert found["touches"] == 3
    assert "; it was touched 3 times." in found["text"]
    assert 0 < driver.server.command("PTTL", f"{KEY}:touches/a") <= 30_000
    await driver.deliveries.release(TOPIC, "a", ANY_RECEIPT, delay_ms=1000)
    await driver.pass_time(1)
    await driver.pop_one()
    assert (await reason(driver))["touches"] == 0
    await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT, ttr_ms=1000)
    assert "; it was touched once." in (await reason(driver))["text"]
    assert driver.server.command("PTTL", f"{KEY}:touches/a") <= 1000


def opening_in(hours: int) -> dict[str, str]:
    """Opening hours from so many hours after now on, for an hour."""
    begin = datetime.now(UTC) + timedelta(hours=hours)
    return {"from": f"{begin:%H:%M}", "to": f"{begin + timedelta(hours=1):%H:%M}"}


async def test_opening_hours_and_spread_that_moved_it(driver: EngineDriver) -> None:
    """They hold it back alone once it would be due without them."""
    window = opening_in(6)
    job = await driver.put("open", delay=86_400, window=window)
    due, moved = await reasons(driver, "open")
    assert (due["code"], moved["code"], moved["window"]) == ("not_due", "window", window)
    assert moved["moved"] == pytest.approx(job.placement.moved_ms / 1000)
    assert moved["asked_for"] == instant(job.due_at_ms - job.placement.moved_ms)
    assert moved["text"].startswith("Its opening hours moved it by ")
    assert "spread" not in moved

    job = await driver.put("apart", spread=3600)
    moved, due = await reasons(driver, "apart")
    assert (moved["code"], moved["spread"], due["code"]) == ("window", 3600, "not_due")
    assert moved["text"].startswith("Its spread moved it by ")
    assert " ago (" in moved["text"] or "0s ago" in moved["text"]

    await driver.put("plain", delay=60, window={"from": "00:00", "to": "24:00"})
    assert [one["code"] for one in await reasons(driver, "plain")] == ["not_due"]


async def test_a_retry_that_opening_hours_moved(driver: EngineDriver) -> None:
    await driver.put(window=opening_in(2))
    await driver.pass_time(2.5 * 3600)
    await driver.pop_one(consumer="w")
    await driver.deliveries.release(TOPIC, "a", ANY_RECEIPT, delay_ms=2 * 3_600_000, error="no")
    found = await reasons(driver)
    assert [one["code"] for one in found] == ["backoff", "window"]


async def test_a_dead_job_says_why_and_what_a_redrive_does(driver: EngineDriver) -> None:
    await driver.put("a", body="x" * 1000)
    await driver.pop_one()
    driver.move_clock(7)
    await driver.deliveries.bury(TOPIC, "a", ANY_RECEIPT, error="poison")
    dead = await driver.queue.get(TOPIC, "a")
    found = await reason(driver)
    assert {name: found[name] for name in ("code", "reason", "error", "attempt")} == {
        "code": "dead", "reason": "buried", "error": "poison", "attempt": 1
    }  # fmt: skip
    assert found["text"].startswith('A consumer buried it: "poison". A redrive makes it ready again')
    assert dead.dead_at_ms is not None
    assert dead.dead_at_ms - dead.created_at_ms == pytest.approx(7000, abs=1000 * NOW_ISH)
    assert {"dead_at", "kept_until"} <= found.keys()
    await redrive_jobs(driver.engine, TOPIC)
    redriven = await driver.queue.get(TOPIC, "a")
    assert redriven.dead_at_ms is None
    assert (await reason(driver))["code"] == "behind"


async def test_a_job_that_is_done(driver: EngineDriver) -> None:
    for job_id, fields in {"kept": {"retain": 60}, "taken": {"unique_for": 60}, "gone": {}}.items():
        await driver.put(job_id, **fields)
        await driver.pop_one()
        await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT, result={"x": 1})
    assert (await reason(driver, "kept"))["code"] == "finished"
    assert {"finished_at", "kept_until"} <= (await reason(driver, "kept")).keys()
    taken = await reason(driver, "taken")
    assert (taken["code"], "kept_until" in taken) == ("finished", True)
    assert (await reason(driver, "gone"))["code"] == "unknown_job"
    driver.move_clock(61)
    assert (await reason(driver, "taken"))["code"] == "unknown_job"


async def test_a_cancelled_job_is_remembered_if_it_was_held(driver: EngineDriver) -> None:
    await driver.put(ttr=10)
    await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    found = {"topic": TOPIC, "id": "a", "state": None, "reasons": [await reason(driver)]}
    assert await why(driver) == found
    assert (await reason(driver))["code"] == "cancelled"
    driver.move_clock(71)
    assert (await reason(driver))["code"] == "unknown_job"


async def test_an_unknown_job_comes_with_ids_that_are_like_it(driver: EngineDriver) -> None:
    found = await reason(driver)
    assert (found["code"], found["nearest"], found["jobs"]) == ("unknown_job", [], 0)
    assert found["text"].startswith("There is no such topic")
    await driver.put("order-1042")
    await driver.put("order-1043", delay=60)
    await driver.put("unrelated")
    found = await reason(driver, "ORDER-1024")
    assert (found["nearest"], found["compared"], found["jobs"]) == (["order-1042", "order-1043"], 3, 3)
    assert "Ids like it: order-1042, order-1043." in found["text"]


async def test_only_the_ends_of_each_state_are_compared(driver: EngineDriver) -> None:
    jobs = [PutJob(topic=TOPIC, id=f"job-{number:04}", delay=60 + number) for number in range(1000)]
    await driver.puts.put_many(jobs)
    found = await driver.topics.why(TOPIC, "job-10000")
    assert isinstance(found, MissingJob)
    assert (found.jobs, found.compared) == (1000, 400)
    assert "job-0000" in found.nearest
    assert isinstance(missing := await driver.topics.why(TOPIC, "job-0999x"), MissingJob)
    assert missing.nearest[0] == "job-0999"


def test_ids_are_alike_by_their_beginning_and_end() -> None:
    ids = ["order-1042", "order-9", "invoice-1042", "x", "a.order-1042"]
    assert nearest("order-1043", ids) == ["order-1042", "order-9"]
    assert nearest("order1042", ids)[0] == "order-1042"
    assert nearest("zzz", ids) == []
    assert nearest("o", ["o"] * 3) == ["o", "o", "o"]
