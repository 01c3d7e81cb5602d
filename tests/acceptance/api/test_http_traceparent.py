"""The trace context of a put is returned with the job; a job without one has no such field."""

from __future__ import annotations

import pytest

from tests.acceptance.http_calls import Http, ok, refusal

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


async def test_a_job_without_one_does_not_show_it(http: Http) -> None:
    put = await http.put_job("j", traceparent=None)
    assert "traceparent" not in put
    assert "traceparent" not in await http.pop_one()


async def test_a_put_takes_the_one_of_its_header(http: Http) -> None:
    job = {"topic": http.topic, "id": "j"}
    put = ok(await http.post("/jobs", json=job, headers={"Traceparent": TRACE}), 201)
    assert put["traceparent"] == TRACE
    assert (await http.pop_one())["traceparent"] == TRACE


async def test_the_traceparent_of_the_body_takes_precedence_over_the_header(http: Http) -> None:
    job = {"topic": http.topic, "traceparent": TRACE}
    put = ok(await http.post("/jobs", json=job, headers={"traceparent": OTHER_TRACE}), 201)
    assert put["traceparent"] == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        TRACE.upper(),
        TRACE[:-1],
        TRACE + "-00",
        TRACE.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
async def test_a_header_that_is_not_valid_is_ignored(http: Http, header: str) -> None:
    put = ok(await http.post("/jobs", json={"topic": http.topic}, headers={"traceparent": header}), 201)
    assert "traceparent" not in put


async def test_two_headers_are_ignored(http: Http) -> None:
    headers = [("traceparent", TRACE), ("traceparent", OTHER_TRACE)]
    put = ok(await http.post("/jobs", json={"topic": http.topic}, headers=headers), 201)
    assert "traceparent" not in put


@pytest.mark.parametrize("text", ["", "00-x", TRACE.upper(), TRACE + "\n", TRACE + "-00"])
async def test_an_invalid_one_in_the_body_is_refused(http: Http, text: str) -> None:
    response = await http.post("/jobs", json={"topic": http.topic, "traceparent": text})
    assert refusal(response, "body.traceparent").startswith("must match ^[0-9a-f]{2}-")


async def test_each_job_of_a_batch_has_its_own_and_the_header_is_ignored(http: Http) -> None:
    jobs = [{"topic": http.topic, "id": "a", "traceparent": TRACE}, {"topic": http.topic, "id": "b"}]
    ok(await http.post("/jobs/batch", json={"jobs": jobs}, headers={"traceparent": OTHER_TRACE}))
    assert (await http.get_job("a"))["traceparent"] == TRACE
    assert "traceparent" not in await http.get_job("b")


async def test_it_stays_through_all_that_happens_to_a_job(http: Http) -> None:
    """Through topic defaults, a change, a retry, a death, a redrive and a result."""
    ok(await http.put(http.topic_path(), json={"retain": 60}))
    await http.put_job("j", traceparent=TRACE, delay=1000, backoff={"kind": "fixed", "seconds": 0})
    ok(await http.patch(http.job_path("j"), json={"delay": 0, "ttr": 5}))
    await http.pop_one()
    ok(await http.post(http.job_path("j", "release"), json={"error": "not yet"}))
    await http.pop_one()
    ok(await http.post(http.job_path("j", "bury")))
    dead = await http.get_job("j")
    assert (dead["traceparent"], dead["last_error"], dead["reason"]) == (TRACE, "not yet", "buried")
    ok(await http.post(http.topic_path("redrive")))
    assert (await http.pop_one())["traceparent"] == TRACE
    ok(await http.post(http.job_path("j", "finish"), json={"result": {"done": True}}))
    finished = await http.get_job("j")
    assert (finished["traceparent"], finished["result"]) == (TRACE, {"done": True})


async def test_a_change_does_not_touch_it(http: Http) -> None:
    await http.put_job("j", delay=1000, traceparent=TRACE)
    response = await http.patch(http.job_path("j"), json={"traceparent": OTHER_TRACE})
    assert refusal(response, "body.traceparent") == "is not a known field"
