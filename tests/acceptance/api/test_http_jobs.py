"""One job by its id over HTTP: what only its responses have; see tests/conformance."""

from __future__ import annotations

from tests.acceptance.http_calls import Http, ok, problem


async def test_a_job_can_be_read_without_its_body_and_its_result(http: Http) -> None:
    job = await http.put_job("long", body={"text": "x" * 100}, retain=60, headers={"a": "b"})
    shown = ok(await http.get(http.job_path("long"), params={"bodies": "false"}))
    assert shown == {
        **{name: value for name, value in job.items() if name not in {"body", "durability"}},
        "body_bytes": 111,
    }
    popped = await http.pop_one()
    ok(await http.post(http.job_path("long", "finish"), json={"receipt": popped["receipt"], "result": [1, 2]}))
    [listed] = ok(await http.get(http.topic_path("jobs"), params={"bodies": "false"}))["jobs"]
    assert (listed["body_bytes"], listed["result_bytes"], listed["state"]) == (111, 5, "finished")
    assert listed == ok(await http.get(http.job_path("long"), params={"bodies": "false"}))
    assert not {"body", "result"} & listed.keys()


async def test_an_unknown_job_is_not_found(http: Http) -> None:
    await http.put_job("other")
    for call in (http.get, http.delete):
        members = problem(await call(http.job_path("none")), 404, "job_not_found")
        assert (members["topic"], members["id"]) == (http.topic, "none")
    problem(await http.patch(http.job_path("none"), json={"delay": 1}), 404, "job_not_found")


async def test_an_empty_change_changes_nothing(http: Http) -> None:
    job = await http.put_job("same", delay=60)
    assert ok(await http.patch(http.job_path("same"), json={})) == job
