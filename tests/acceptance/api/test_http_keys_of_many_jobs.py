"""Calls on many jobs, tasks, schedules and what is seen at a glance, with keys: each for the topics of its key only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.api.keyed_service import KeysFile, audit_lines, call
from tests.acceptance.http_calls import Json
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import BUSY_S, wait_until


class Keyed:
    """A service with keys, and calls with them."""

    def __init__(self, service: ServiceProcess, keys: KeysFile) -> None:
        self.service = service
        self._keys = keys

    async def call(self, key: str | None, method: str, path: str, body: Any = None, **how: Any) -> tuple[int, Json]:
        """The status and the body of the response."""
        token = None if key is None else self._keys.tokens[key]
        response = await call(self.service, method, path, body, token=token, **how)
        return response.status, response.json()

    async def status(self, key: str | None, method: str, path: str, body: Any = None, **how: Any) -> int:
        status, _ = await self.call(key, method, path, body, **how)
        return status


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    keys = KeysFile(Path(tmp_path_factory.mktemp("keys")) / "keys.toml")
    keys.add("all", "admin", "read", "put", "pop", "cancel")
    keys.add("shop", "read", "put", "cancel", topics=("shop.*",))
    keys.add("bank", "put", topics=("bank.*",))
    keys.add("reader", "read", topics=("shop.*",))
    keys.add("putter", "put", topics=("shop.*",))
    keys.add("canceller", "cancel", topics=("shop.*",))
    keys.add("popper", "pop")
    keys.add("bounded", "put", "read", topics=("shop.*",), more="max_jobs = 1\nmax_ttl = 60\nmax_jobs_total = 1000\n")
    flags = ("--keys-file", str(keys.path), "--log-format", "json")
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("deferd")) as service:
        service.wait_ready()
        yield Keyed(service, keys)


@pytest.fixture
async def jobs(keyed: Keyed) -> None:
    """One job with the tag in a topic of the shop, and one in another topic."""
    for topic in ("shop.a", "bank.a"):
        body = {"topic": topic, "id": "j", "delay": 3600, "tags": ["t"], "on_conflict": "replace"}
        assert await keyed.status("all", "POST", "/jobs", body) in {200, 201}


def moved_by_5(select: Json) -> tuple[tuple[str, Json], ...]:
    """Calls on the selected jobs: the first leaves them where they are."""
    return ("/jobs/reschedule", {"select": select, "by": 5}), ("/jobs/cancel", {"select": select})


@pytest.mark.parametrize(
    "select",
    [
        {"tag": "t"},
        {"tag": "t", "topics": ["*"]},
        {"state": "delayed", "topics": ["*.a", "shop.a"]},
    ],
)
@pytest.mark.usefixtures("jobs")
async def test_jobs_of_other_topics_do_not_match(keyed: Keyed, select: Json) -> None:
    for path, body in moved_by_5(select):
        status, done = await keyed.call("shop", "POST", path, body)
        assert (status, done["done"]) == (200, 1)
        assert await keyed.status("all", "GET", "/jobs/bank.a/j") == 200
    _, done = await keyed.call("all", "POST", "/jobs/reschedule", {"select": {"tag": "t"}, "by": 5})
    assert done["done"] == 1


@pytest.mark.parametrize(
    "select",
    [
        {"ids": [{"topic": "shop.a", "id": "j"}, {"topic": "bank.a", "id": "j"}]},
        {"tag": "t", "topics": ["shop.*", "bank.a"]},
        {"state": "delayed", "topics": ["bank.a"]},
    ],
)
@pytest.mark.usefixtures("jobs")
async def test_a_named_topic_that_the_key_is_not_for_is_refused(keyed: Keyed, select: Json) -> None:
    for path, body in moved_by_5(select):
        status, problem = await keyed.call("shop", "POST", path, body)
        assert (status, problem["code"], "bank.a" in problem["detail"]) == (403, "forbidden", True)
    for topic in ("shop.a", "bank.a"):
        assert await keyed.status("all", "GET", f"/jobs/{topic}/j") == 200


@pytest.mark.usefixtures("jobs")
async def test_cancel_and_reschedule_need_the_scopes_of_single_jobs(keyed: Keyed) -> None:
    reschedule, cancel = moved_by_5({"tag": "t"})
    assert await keyed.status("putter", "POST", *cancel) == 403
    assert await keyed.status("canceller", "POST", *reschedule) == 403
    assert await keyed.status("putter", "POST", *reschedule) == 200
    assert await keyed.status("canceller", "POST", *cancel) == 200
    assert await keyed.status(None, "POST", *cancel) == 401


@pytest.mark.usefixtures("jobs")
async def test_request_ids_of_two_keys_are_different_ones(keyed: Keyed) -> None:
    body = {"select": {"tag": "t"}, "by": 5, "request_id": "r"}
    for key, done in (("all", 2), ("shop", 1), ("putter", 1), ("all", 2)):
        _, found = await keyed.call(key, "POST", "/jobs/reschedule", body)
        assert (found["matched"], found["done"]) == (done, done)


async def test_a_task_acts_on_the_topics_of_its_key_only(keyed: Keyed) -> None:
    for topic in ("shop.task", "bank.task"):
        job = {"topic": topic, "id": "j", "tags": ["task"], "delay": 60}
        assert await keyed.status("all", "POST", "/jobs", job) == 201
    await asyncio.sleep(0.002)
    body = {"select": {"tag": "task"}, "as_task": True}
    assert await keyed.status("reader", "POST", "/jobs/cancel", body) == 403
    by_shop = (await keyed.call("shop", "POST", "/jobs/cancel", body))[1]["id"]
    purge = (await keyed.call("all", "DELETE", "/topics/bank.task?as_task=true&state=dead"))[1]["id"]
    task: Json = {"state": "running"}
    while task["state"] == "running":
        _, task = await keyed.call("shop", "GET", f"/tasks/{by_shop}")
    assert (task["done"], task["by"]) == (1, "shop")
    assert await keyed.status("all", "GET", "/jobs/bank.task/j") == 200
    assert await keyed.status("all", "GET", "/jobs/shop.task/j") == 404

    async def seen(key: str) -> set[str]:
        return {one["id"] for one in (await keyed.call(key, "GET", "/tasks"))[1]["tasks"]}

    assert await seen("all") == {by_shop, purge}
    assert await seen("shop") == {by_shop}
    assert await keyed.status("shop", "GET", f"/tasks/{purge}") == 404
    assert await keyed.status("shop", "DELETE", f"/tasks/{purge}") == 404
    assert await keyed.status("reader", "DELETE", f"/tasks/{purge}") == 403
    assert await keyed.status("all", "DELETE", f"/tasks/{purge}") == 200


async def test_a_key_sees_dead_jobs_of_its_topics_only(keyed: Keyed) -> None:
    for topic in ("shop.dead", "bank.dead"):
        assert await keyed.status("all", "POST", "/jobs", {"topic": topic, "id": "j"}) == 201
        assert await keyed.status("all", "GET", f"/topics/{topic}/pop") == 200
        assert await keyed.status("all", "POST", f"/jobs/{topic}/j/bury", {"error": "x"}) == 200

    async def topics(key: str, query: str = "") -> tuple[int, list[str], int]:
        status, found = await keyed.call(key, "GET", f"/dead{query}")
        return status, [one["topic"] for one in found.get("groups", ())], found.get("dead", 0)

    assert await topics("all") == (200, ["bank.dead", "shop.dead"], 2)
    assert await topics("shop") == (200, ["shop.dead"], 1)
    assert await topics("shop", "?topics=*.dead") == (200, ["shop.dead"], 1)
    assert await topics("shop", "?topics=bank.dead") == (403, [], 0)
    assert await topics("popper") == (403, [], 0)


async def test_a_key_sees_what_comes_due_in_its_topics_only(keyed: Keyed) -> None:
    for topic in ("shop.due", "bank.due"):
        assert await keyed.status("all", "POST", "/jobs", {"topic": topic, "id": "j", "delay": 60}) == 201

    async def seen(key: str, query: str) -> tuple[int, int | None]:
        status, found = await keyed.call(key, "GET", f"/forecast{query}")
        return status, found.get("delayed")

    assert [await seen(key, "?topics=*.due") for key in ("all", "shop")] == [(200, 2), (200, 1)]
    status, found = await keyed.call("shop", "GET", "/forecast")
    assert (status, {one["topic"].partition(".")[0] for one in found["topics"]}) == (200, {"shop"})
    assert await seen("shop", "?topics=bank.due") == (403, None)
    assert await seen("putter", "") == (403, None)


async def test_keys_need_the_topic_into_which_a_batch_puts(keyed: Keyed) -> None:
    ours, theirs = {"on_end": {"topic": "shop.done"}}, {"on_end": {"topic": "theirs.done"}}
    assert await keyed.status("shop", "PUT", "/batches/ours", ours) == 201
    assert await keyed.status("shop", "PUT", "/batches/x", theirs) == 403
    assert await keyed.status("all", "PUT", "/batches/theirs", theirs) == 201
    status, forbidden = await keyed.call("shop", "GET", "/batches/theirs")
    assert (status, "theirs.done" in str(forbidden)) == (403, False)
    assert await keyed.status("shop", "PUT", "/batches/theirs", {"seal": True}) == 403
    assert await keyed.status("shop", "PUT", "/batches/theirs", ours) == 403
    assert await keyed.status("shop", "DELETE", "/batches/theirs") == 403
    _, listed = await keyed.call("shop", "GET", "/batches")
    assert [one["name"] for one in listed["batches"]] == ["ours"]

    of_theirs = {"topic": "shop.jobs", "id": "no", "batch": "theirs"}
    for through_asgi in (False, True):
        assert await keyed.status("shop", "POST", "/jobs", of_theirs, through_asgi=through_asgi) == 403
        assert (
            await keyed.status("shop", "POST", "/jobs/batch", {"jobs": [of_theirs]}, through_asgi=through_asgi) == 403
        )
    assert await keyed.status("shop", "POST", "/jobs", {"topic": "shop.jobs", "id": "a", "batch": "ours"}) == 201
    assert await keyed.status("all", "POST", "/jobs", {"topic": "theirs.jobs", "id": "a", "batch": "ours"}) == 201
    assert await keyed.status("all", "POST", "/topics/shop.jobs/pop?wait=0") == 200
    assert await keyed.status("shop", "POST", "/jobs/shop.jobs/a/finish", {"put": [of_theirs]}) == 403
    assert await keyed.status("shop", "GET", "/jobs/shop.jobs/no") == 404
    assert await keyed.call("shop", "DELETE", "/batches/ours") == (
        200,
        {"name": "ours", "cancelled": 1, "deleted": True},
    )
    assert await keyed.status("all", "GET", "/jobs/theirs.jobs/a") == 200


async def test_a_key_cannot_take_a_batch_that_another_one_makes_at_the_same_time(keyed: Keyed) -> None:
    for number in range(20):
        statuses = await asyncio.gather(
            *(
                keyed.status(key, "PUT", f"/batches/both-{number}", {"on_end": {"topic": topic}})
                for key, topic in (("bank", "bank.done"), ("shop", "shop.done"))
            )
        )
        assert sorted(statuses) == [201, 403]


async def test_keys_need_the_schedules_topic_old_and_new(keyed: Keyed) -> None:
    ours, theirs = {"topic": "shop.s", "every": 3600}, {"topic": "theirs.s", "every": 3600}
    assert await keyed.status("reader", "PUT", "/schedules/a", ours) == 403
    assert await keyed.status("shop", "PUT", "/schedules/a", theirs) == 403
    assert await keyed.status("shop", "PUT", "/schedules/a", ours) == 201
    assert await keyed.status("all", "PUT", "/schedules/b", theirs) == 201
    for through_asgi in (False, True):
        assert await keyed.status("reader", "GET", "/schedules/a", through_asgi=through_asgi) == 200
        assert await keyed.status("reader", "GET", "/schedules/b", through_asgi=through_asgi) == 403
    assert await keyed.status("reader", "GET", "/schedules/b/preview") == 403
    assert await keyed.status("shop", "PUT", "/schedules/b", ours) == 403
    for verb in ("pause", "resume", "run"):
        assert await keyed.status("shop", "POST", f"/schedules/b/{verb}") == 403
        assert await keyed.status("reader", "POST", f"/schedules/a/{verb}") == 403
    assert await keyed.status("shop", "DELETE", "/schedules/b") == 403
    _, listed = await keyed.call("shop", "GET", "/schedules")
    assert [one["name"] for one in listed["schedules"]] == ["a"]
    _, forbidden = await keyed.call("shop", "GET", "/schedules/b")
    assert "theirs" not in str(forbidden)
    assert await keyed.status("shop", "POST", "/schedules/a/run") == 201
    assert await keyed.status("shop", "DELETE", "/schedules/a") == 200

    def done() -> list[Json]:
        return [one for one in audit_lines(keyed.service) if one["outcome"] == "done" and one.get("subject") == "a"]

    wait_until(lambda: len(done()) >= 3, BUSY_S, "three writes")
    assert [(one["key"], one["call"]) for one in done()] == [
        ("shop", "PUT /schedules/{name}"),
        ("shop", "POST /schedules/{name}/run"),
        ("shop", "DELETE /schedules/{name}"),
    ]
    assert done()[0]["topic"] == "shop.s"


async def test_the_bounds_of_a_key_apply_to_its_schedules(keyed: Keyed) -> None:
    body = {"topic": "shop.bounded", "every": 3600, "job": {"ttl": 61}}
    status, refused = await keyed.call("bounded", "PUT", "/schedules/bounded", body)
    assert (status, refused["errors"][0]["field"]) == (422, "body.job.ttl")
    status, created = await keyed.call("bounded", "PUT", "/schedules/bounded", {**body, "job": {"ttl": 60}})
    assert (status, created["next_job"] is not None) == (201, True)
    assert await keyed.status("bounded", "POST", "/schedules/bounded/run") == 429
    assert await keyed.status("all", "DELETE", "/schedules/bounded") == 200
