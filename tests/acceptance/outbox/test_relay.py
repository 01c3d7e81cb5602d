"""What transactions have put into an outbox becomes jobs: each once, in order, and nothing that was rolled back."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deferd.client.errors import NoAnswer, UnexpectedAnswer
from deferd.client.requests import ApiRequest
from deferd.contract.errors import DeferdError, Unauthorized
from deferd.outbox import database as outbox_database
from deferd.outbox import relay, sending
from deferd.outbox.administration import Selected, connected_to_outbox, refused_rows, retry_refused
from deferd.outbox.database import OutboxDatabase, open_outbox
from deferd.outbox.relay import Relay
from deferd.outbox.sending import Reply
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.http_calls import Http, ok
from tests.acceptance.outbox.relay_runs import Database, WatchedService, refused, relaying, until_sent, waiting
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forgotten_relays")

PUT = "SELECT deferd.put(%s, to_jsonb(%s::text), id => %s)"
CANCEL = "SELECT deferd.cancel(%s, %s)"
OF_RELAYS = "FROM pg_stat_activity WHERE application_name = 'deferd relay'"


OUTBOX_PAGE = Path(__file__).parents[3] / "docs" / "outbox.md"
SERIALIZABLE = """
SELECT relation::regclass FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE mode = 'SIReadLock' AND application_name = 'deferd relay'
"""


async def job_ids(http: Http) -> list[str]:
    jobs = ok(await http.get(http.topic_path("jobs"), params={"limit": 1000}))["jobs"]
    return sorted(job["id"] for job in jobs)


async def test_what_was_committed_becomes_jobs_and_what_was_rolled_back_does_not(
    shared_service: ServiceProcess, relay_url: str, database: Database, http: Http
) -> None:
    service = WatchedService(shared_service.url)
    put = (
        "SELECT deferd.put(%s, '{\"order\": 1}', id => %s, delay => interval '1 hour', tags => array['x'], "
        f"on_end => '{json.dumps({'topic': http.topic, 'id': 'ended'})}')"
    )
    async with relaying(relay_url, service):
        with database.transaction():
            database.execute(put, (http.topic, "kept"))
            with database.transaction(force_rollback=True):
                database.execute(put, (http.topic, "rolled-back-to-a-savepoint"))
        with database.transaction(force_rollback=True):
            database.execute(put, (http.topic, "rolled-back"))
        await until_sent(database)
        assert await job_ids(http) == ["kept"]
        job = ok(await http.get(http.job_path("kept")))
        assert (job["body"], job["tags"], job["state"]) == ({"order": 1}, ["x"], "delayed")

        database.execute("SELECT deferd.reschedule(%s, 'kept', delay => '2 hours', body => '2')", (http.topic,))
        await until_sent(database)
        changed = ok(await http.get(http.job_path("kept")))
        assert changed["body"] == 2
        assert changed["due_at"] > job["due_at"]

        database.execute(CANCEL, (http.topic, "kept"))
        await until_sent(database)
        assert await job_ids(http) == ["ended"]
    assert refused(database) == {}
    assert database.execute("SELECT clean_stop FROM deferd.relay").fetchone() == (True,)


async def test_the_calls_for_one_job_keep_their_order(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    topic = http.topic
    with database.transaction():
        for body in ("first", "second"):
            database.execute(PUT, (topic, body, "again"))
            database.execute("SELECT deferd.reschedule(%s, 'again', delay => '1 hour')", (topic,))
            if body == "first":
                database.execute(CANCEL, (topic, "again"))
        database.execute(PUT, (topic, "gone", "gone"))
        database.execute(CANCEL, (topic, "gone"))
        database.execute("SELECT deferd.put(%s, '1', id => 'replaced', on_conflict => 'replace')", (topic,))
        database.execute("SELECT deferd.put(%s, '2', id => 'replaced', on_conflict => 'replace')", (topic,))
    service = WatchedService(shared_service.url)
    async with relaying(outbox_url, service):
        await until_sent(database)
    assert await job_ids(http) == ["again", "replaced"]
    again = ok(await http.get(http.job_path("again")))
    assert (again["body"], again["state"]) == ("second", "delayed")
    assert ok(await http.get(http.job_path("replaced")))["body"] == 2
    batches = [json.loads(one.body or b"") for one in service.requests if one.path == "/jobs/batch"]
    bodies = [job["body"] for batch in batches for job in batch["jobs"]]
    assert sorted(map(str, bodies)) == ["1", "2", "second"], "no job comes to life that is cancelled already"


async def test_a_transaction_that_commits_late_is_not_skipped(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    with psycopg.connect(outbox_url) as slow:
        slow.execute(PUT, (http.topic, "", "late"))
        async with relaying(outbox_url, shared_service.url):
            for number in range(3):
                database.execute(PUT, (http.topic, "", f"early-{number}"))
                await until_sent(database)
            assert await job_ids(http) == ["early-0", "early-1", "early-2"]
            slow.commit()
            await until_sent(database)
            assert "late" in await job_ids(http)


SLOW = """
CREATE FUNCTION commit_slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON deferd.outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.id = 'slow') EXECUTE FUNCTION commit_slowly();
"""


@pytest.mark.parametrize(("job_id", "is_prepared"), [("slow", False), ("quick", True), ("slow", True)])
async def test_a_cancel_does_not_overtake_a_put_whose_commit_was_slow(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http, *, job_id: str, is_prepared: bool
) -> None:
    database.execute(SLOW)
    others = 0

    async def commit_others(end: asyncio.Future[Any]) -> None:
        """They get later positions, and are sent."""
        nonlocal others
        while not end.done():
            others += 1
            database.execute(PUT, (http.topic, "", f"other-{others}"))
            await asyncio.sleep(0.01)

    with psycopg.connect(outbox_url) as slow:
        async with relaying(outbox_url, shared_service.url):
            slow.execute(PUT, (http.topic, "", job_id))
            slow.execute("SET LOCAL deferd.notify = 'off'")
            end = "PREPARE TRANSACTION 'shop'" if is_prepared else "COMMIT"
            await commit_others(asyncio.ensure_future(asyncio.to_thread(slow.execute, end)))
            if is_prepared:
                await commit_others(asyncio.ensure_future(asyncio.sleep(0.5)))
                database.execute("COMMIT PREPARED 'shop'")
            database.execute(CANCEL, (http.topic, job_id))
            await until_sent(database)
    assert others > 5
    assert await job_ids(http) == sorted(f"other-{one + 1}" for one in range(others))


async def test_each_outcome_has_its_effect_and_stops_no_other_row(
    shared_service: ServiceProcess, relay_url: str, database: Database, http: Http
) -> None:
    topic = http.topic
    await http.put_job("once", unique_for=60)
    ok(await http.post(http.job_path("once", "finish"), json={"receipt": (await http.pop_one())["receipt"]}))
    for job_id in ("held", "held-too"):
        await http.reserve(job_id)
    await http.put_job("there")
    raw = "INSERT INTO deferd.outbox (verb, topic, id, fields) VALUES ('put', %s, %s, %s)"
    with database.transaction():
        for number in range(40):
            database.execute(PUT, (topic, "", f"ok-{number}"))
            if number % 16 == 3:
                job_id = f"bad-{number}"
                fields = {"topic": topic, "id": job_id, "on_conflict": "keep", "body": 1, "ttr": "\0"}
                database.execute(raw, (topic, job_id, json.dumps(fields).replace("\\u0000", "no")))
        database.execute("SELECT deferd.put(%s, id => 'there', on_conflict => 'keep')", (topic,))
        database.execute("SELECT deferd.put(%s, id => 'once')", (topic,))
        database.execute("SELECT deferd.put(%s, id => 'held-too', on_conflict => 'reject')", (topic,))
        database.execute("SELECT deferd.put(%s, to_jsonb(repeat('x', 1100000)), id => 'large')", (topic,))
        database.execute(CANCEL, (topic, "unknown"))
        database.execute("SELECT deferd.cancel(%s, 'held', if_reserved => 'refuse')", (topic,))
        database.execute("SELECT deferd.reschedule(%s, 'unknown-too', delay => '1 s')", (topic,))
        database.execute("SELECT deferd.reschedule(%s, 'held-too', delay => '1 s')", (topic,))
    async with relaying(relay_url, shared_service.url):
        await until_sent(database)
        assert refused(database) == {
            **{f"bad-{number}": "validation" for number in (3, 19, 35)},
            "held-too": "job_exists",
            "large": "payload_too_large",
        }
        ids = await job_ids(http)
        assert {f"ok-{number}" for number in range(40)} <= {*ids}
        assert {"held", "held-too", "there"} <= {*ids}
        [problem] = database.execute("SELECT problem FROM deferd.refused WHERE id = 'bad-3'").fetchone() or [None]
        assert problem["status"] == 422
        assert problem["errors"][0]["field"] == "body.jobs.0.ttr"


async def test_a_role_with_the_documented_rights_can_relay_and_retry_whatever_its_defaults_are(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    [grants] = re.findall(r"```sql\n(CREATE ROLE relay .*?)```", OUTBOX_PAGE.read_text(), re.DOTALL)
    role = f"relay_of_{database.info.dbname}"
    database.execute(re.sub(r"\brelay\b", role, grants))
    url = outbox_url.replace("postgres@", f"{role}@") + "?client_encoding=LATIN1"
    database.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'serializable'")
    database.execute(f"ALTER ROLE {role} SET datestyle = 'German'")
    try:
        with psycopg.connect(outbox_url) as other:  # what serializable transactions read is known until others end, too
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            other.execute("SELECT FROM deferd.relay")
            async with relaying(url, shared_service.url):
                database.execute(PUT, (http.topic, "", "a"))
                database.execute("SELECT deferd.put(%s, id => 'a', on_conflict => 'reject')", (http.topic,))
                await until_sent(database)
                assert database.execute(SERIALIZABLE).fetchall() == []
        assert refused(database) == {"a": "job_exists"}
        with connected_to_outbox(url) as connection:
            assert [row.id for row in refused_rows(connection, Selected(), None)] == ["a"]
            assert retry_refused(connection, Selected()) == 1
        assert waiting(database) == ["a"]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_rows_of_a_full_topic_wait_and_others_go_on(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    other = f"{http.topic}-other"
    ok(await http.put(http.topic_path(), json={"max_jobs": 1}))
    await http.put_job("first")
    service = WatchedService(shared_service.url)
    async with relaying(outbox_url, service):
        with database.transaction():
            database.execute(PUT, (http.topic, "1", "second"))
            for job_id in ("tagged", "again"):
                database.execute("SELECT deferd.put(%s, id => %s, tags => array[%s])", (http.topic, job_id, http.topic))
            database.execute(PUT, (http.topic, "needless, as the one before is there", "tagged"))
            database.execute("SELECT deferd.cancel(%s, 'again')", (http.topic,))
            database.execute(PUT, (http.topic, "after the cancel", "again"))
            database.execute(PUT, (other, "", "elsewhere"))
            database.execute(PUT, (http.topic, "2", "third"))
            database.execute(CANCEL, (http.topic, "third"))
        there = ["second", "tagged", "tagged", "again"]
        await until(lambda: waiting(database) == there, "the rows that fit were sent")
        assert ok(await http.get(f"/jobs/{other}/elsewhere"))["state"] == "ready"

        database.execute("SELECT deferd.cancel_tag(%s)", (http.topic,))
        await until(lambda: waiting(database) == ["second", "again"], "the cancel took back what waited")

        for number in range(20):
            database.execute(PUT, (other, "", f"other-{number}"))
            await until(lambda: waiting(database) == ["second", "again"], "another topic goes on")
        attempts = sum(b'"second"' in (one.body or b"") for one in service.requests)
        assert attempts < 10, "the full topic is tried now and then"
        ok(await http.delete(http.job_path("first")))
        await until(lambda: waiting(database) == ["again"], "there is room for one")
        ok(await http.put(http.topic_path(), json={}))
        await until_sent(database)
    assert await job_ids(http) == ["again", "second"]
    assert refused(database) == {}


async def test_what_follows_a_row_that_waits_for_its_topic_waits_too(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_database, "READ_ROWS", 10)
    monkeypatch.setattr(relay, "_AHEAD_ROWS", 2)
    ok(await http.put(http.topic_path(), json={"max_jobs": 1}))
    await http.put_job("first")
    with database.transaction():
        for number in range(12):  # so that the next read is under way
            database.execute(PUT, (f"{http.topic}-other", "", f"before-{number}"))
        database.execute(PUT, (http.topic, "", "second"))
        for number in range(12):
            database.execute(PUT, (f"{http.topic}-other", "", f"behind-{number}"))
        database.execute("SELECT deferd.reschedule(%s, 'second', delay => '1 hour')", (http.topic,))
    async with relaying(outbox_url, shared_service.url):
        await until(lambda: len(waiting(database)) <= 2, "the others were sent")
        ok(await http.delete(http.job_path("first")))
        await until_sent(database)
    assert ok(await http.get(http.job_path("second")))["state"] == "delayed"


async def test_rows_of_a_topic_that_is_full_for_too_long_are_refused(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    ok(await http.put(http.topic_path(), json={"max_jobs": 1}))
    with database.transaction():
        for job_id in ("a", "b", "c"):
            database.execute(PUT, (http.topic, "", job_id))
    async with relaying(outbox_url, shared_service.url, full_for_s=0.2):
        await until_sent(database)
    assert await job_ids(http) == ["a"]
    assert refused(database) == {"b": "topic_full", "c": "topic_full"}


async def test_a_cancel_by_tag_cancels_what_was_put_before_it_and_nothing_else(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_TAGGED_JOBS", 2)
    put = "SELECT deferd.put(%s, id => %s, tags => array[%s], on_conflict => %s)"
    with database.transaction():
        for job_id in ("a", "b", "c", "d", "e"):
            database.execute(put, (http.topic, job_id, http.topic, "replace"))
        database.execute(put, (http.topic, "never-sent", http.topic, "keep"))
        untagged = "SELECT deferd.put(%s, id => %s, on_conflict => %s)"
        for job_id, later in (("needless", "keep"), ("replacing", "replace"), ("refused", "reject")):
            database.execute(put, (http.topic, job_id, http.topic, "keep"))
            database.execute(untagged, (http.topic, job_id, later))
        database.execute(put, (http.topic, "again", http.topic, "keep"))
        database.execute("SELECT deferd.cancel(%s, 'again')", (http.topic,))
        database.execute(untagged, (http.topic, "again", "keep"))
        database.execute(put, (http.topic, "no-longer-tagged", http.topic, "keep"))
        database.execute("SELECT deferd.reschedule(%s, 'no-longer-tagged', tags => '{}')", (http.topic,))
        database.execute("SELECT deferd.cancel_tag(%s)", (http.topic,))
        database.execute(put, (http.topic, "e", http.topic, "keep"))
        database.execute(put, (http.topic, "f", http.topic, "keep"))
    service = WatchedService(shared_service.url)
    async with relaying(outbox_url, service):
        await until_sent(database)
    assert await job_ids(http) == ["again", "e", "f", "no-longer-tagged", "replacing"]
    assert refused(database) == {"refused": "job_exists"}
    assert not any(b"never-sent" in (one.body or b"") for one in service.requests)
    assert service.sent().count(("POST", "/jobs/cancel")) >= 3, "it was repeated until it was complete"


async def test_a_cancel_by_tag_overtakes_many_rows_of_a_full_topic_in_little_time(
    outbox_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_database, "STATEMENT_S", 2.0)
    database.execute("VACUUM ANALYZE deferd.outbox")  # the plan is made for a table that was empty
    rows = "SELECT %s, 't', 'j' || i, %s::jsonb FROM generate_series(%s::integer, %s::integer) i"
    insert = f"INSERT INTO deferd.outbox (verb, topic, id, fields) {rows}"
    put, tagging = '{"tags": ["a", "b"], "on_conflict": "%s"}', '{"tags": []}'
    with database.transaction():
        database.execute("ALTER TABLE deferd.outbox DISABLE TRIGGER at_commit")
        for values in (
            ("reschedule", tagging, 1, 1000),  # of an earlier job
            ("put", put % "keep", 1, 10_000),
            ("put", put % "replace", 10_001, 10_002),
            ("reschedule", tagging, 9001, 10_001),
        ):
            database.execute(insert, values)
        last = database.execute("SELECT max(position) FROM deferd.outbox").fetchone()
        database.execute(insert, ("put", put % "keep", 20_000, 20_000))
    async with open_outbox(outbox_url) as outbox:
        await outbox.drop_tagged(["t", "u"], "b", "refuse", (last or [0])[0] + 1)

    found = database.execute(
        "SELECT verb, id FROM deferd.outbox WHERE verb <> 'reschedule' ORDER BY position"
    ).fetchall()
    assert found[:1000] == [("put", f"j{number}") for number in range(9001, 10_001)]
    assert found[1000:] == [("put", "j10001"), ("cancel", "j10002"), ("put", "j20000")]


async def test_many_rows_are_sent_in_their_order(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    with psycopg.connect(outbox_url) as other:  # its commit is under way: all reads begin before its row
        other.execute("SET LOCAL deferd.notify = 'off'")
        other.execute(PUT, (http.topic, "", "rolled-back"))
        other.execute("PREPARE TRANSACTION 'many'")
    with database.transaction():
        put = "SELECT deferd.put(%s, to_jsonb(i), id => 'j' || i) FROM generate_series(1, 2500) i"
        database.execute(put, (http.topic,))
        database.execute("SELECT deferd.cancel(%s, 'j' || i) FROM generate_series(1, 2490) i", (http.topic,))
        database.execute("SELECT deferd.put(%s, '0', id => 'j' || i) FROM generate_series(1, 5) i", (http.topic,))
    service = WatchedService(shared_service.url)
    async with relaying(outbox_url, service):
        await until_sent(database)
        database.execute("ROLLBACK PREPARED 'many'")
    assert await job_ids(http) == sorted(f"j{number}" for number in (*range(1, 6), *range(2491, 2501)))
    assert ok(await http.get(http.job_path("j1")))["body"] == 0
    assert refused(database) == {}
    assert sum(len(json.loads(one.body or b"")["jobs"]) for one in service.requests) <= 2500 + 2490 + 5, "none twice"


async def test_a_read_is_bounded_in_bytes(outbox_url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_database, "READ_BYTES", 100_000)
    compressible = "SELECT deferd.put('t', to_jsonb(repeat('x', 60000))) FROM generate_series(1, 5)"
    random = (
        "SELECT deferd.put('t', (SELECT jsonb_agg(random()) FROM generate_series(1, 3000))) FROM generate_series(1, 5)"
    )
    database.execute(compressible)
    database.execute("ALTER TABLE deferd.outbox ALTER COLUMN fields SET STORAGE EXTERNAL")
    database.execute(random)
    async with outbox_database.open_outbox(outbox_url) as outbox:
        rows = await outbox.read(0, [])
        assert len(rows) == 2
        assert len(await outbox.read(0, [], [row.position for row in rows])) == 2
        [last] = database.execute("SELECT max(position) - 5 FROM deferd.outbox").fetchone() or [0]
        assert 1 <= len(await outbox.read(last, [])) < 5


async def test_rows_whose_response_was_lost_are_sent_again(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    lost: list[str] = []

    def lose_the_first(request: ApiRequest[Any], reply: Reply[Any]) -> Reply[Any]:
        if request.path in lost:
            return reply
        lost.append(request.path)
        return Reply(None, NoAnswer("lost"), b"")

    with database.transaction():
        for job_id in ("a", "b"):
            database.execute("SELECT deferd.put(%s, id => %s, tags => array[%s])", (http.topic, job_id, http.topic))
        database.execute("SELECT deferd.reschedule(%s, 'a', delay => '1 h')", (http.topic,))
        database.execute("SELECT deferd.cancel_tag('another')")
        database.execute(CANCEL, (http.topic, "b"))
    service = WatchedService(shared_service.url, lose_the_first)
    async with relaying(outbox_url, service):
        await until_sent(database)
    assert len(lost) == 4
    assert await job_ids(http) == ["a"]
    assert refused(database) == {}


@pytest.mark.parametrize(
    "error",
    [UnexpectedAnswer(404, "a wrong path", is_problem=True), UnexpectedAnswer(422, "a wrong server"), Unauthorized()],
    ids=lambda error: str(error) or "no key",
)
async def test_responses_that_say_nothing_about_rows_refuse_none(
    shared_service: ServiceProcess, outbox_url: str, database: Database, topic: str, error: DeferdError
) -> None:
    replies: list[Reply[Any]] = [Reply(None, error, b"{}")]
    service = WatchedService(shared_service.url, lambda _, reply: replies.pop() if replies else reply)
    database.execute(PUT, (topic, "", "a"))
    async with relaying(outbox_url, service):
        await until_sent(database)
    assert len(service.requests) == 2
    assert refused(database) == {}


async def test_rows_wait_for_a_key_that_may_put(
    shared_service: ServiceProcess, outbox_url: str, database: Database, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_REPORT_S", 0.05)
    service = WatchedService(shared_service.url)
    service.is_forbidden = True
    database.execute(PUT, (topic, "", "a"))
    async with relaying(outbox_url, service):
        await until(lambda: service.reports > 2, "it asks again")
        assert waiting(database) == ["a"]
        service.is_forbidden = False
        await until_sent(database)
    assert refused(database) == {}


async def test_nothing_follows_on_a_lost_call_while_that_may_take_effect(
    shared_service: ServiceProcess, outbox_url: str, database: Database, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(PUT, (topic, "", "a"))
    with lossy_proxy(shared_service.url) as proxy:
        service = WatchedService(proxy.url)
        monkeypatch.setattr(sending, "CALL_S", 0.3)
        proxy.forward()  # the report
        proxy.lose_responses()
        proxy.respond(502, sent=True)
        async with relaying(outbox_url, service):
            await until_sent(database)
    first_s, second_s, third_s = service.times_s
    assert second_s - first_s >= 0.3
    assert third_s - second_s >= 0.3


async def test_a_call_that_a_proxy_finds_too_large_is_sent_in_parts(
    shared_service: ServiceProcess, outbox_url: str, database: Database, topic: str
) -> None:
    def refuse_large(request: ApiRequest[Any], reply: Reply[Any]) -> Reply[Any]:
        is_large = len(request.body or b"") > 500
        return Reply(None, UnexpectedAnswer(413, "too large for a proxy"), b"<html>") if is_large else reply

    with database.transaction():
        for job_id in ("a", "b", "c", "d", "e"):
            database.execute(PUT, (topic, "x" * 1000 if job_id == "c" else "", job_id))
    async with relaying(outbox_url, WatchedService(shared_service.url, refuse_large)):
        await until_sent(database)
    assert refused(database) == {"c": "unexpected_answer"}


async def test_relays_report_to_the_service(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    async def states() -> dict[str, str]:
        return {one["name"]: one["state"] for one in ok(await http.get("/relays"))["relays"] if one["name"] in names}

    names = {f"{http.topic[:20]}-{letter}" for letter in "ab"}
    first, second = sorted(names)
    async with relaying(outbox_url, shared_service.url, name=first):
        while await states() != {first: "works"}:
            await asyncio.sleep(0.01)
        async with relaying(outbox_url, shared_service.url, name=second):
            while await states() != {first: "works", second: "waits"}:
                await asyncio.sleep(0.01)
    [report] = [one for one in ok(await http.get("/relays"))["relays"] if one["name"] == first]
    assert report["database"] == outbox_url.rpartition("@")[2]
    assert (report["state"], report["rows"], report["lag"]) == ("waits", 0, 0)


async def test_rows_that_were_acknowledged_are_not_sent_again_after_the_connection_broke(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    def break_connection(request: ApiRequest[Any], reply: Reply[Any]) -> Reply[Any]:
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'deferd relay'"
        )
        return reply

    service = WatchedService(shared_service.url, break_connection)
    with database.transaction():
        database.execute(PUT, (http.topic, "", "a"))
    async with relaying(outbox_url, service):
        await until_sent(database)
        assert await job_ids(http) == ["a"]
        assert service.sent() == [("POST", "/jobs/batch")]


async def test_another_row_at_the_position_of_one_that_the_database_has_lost_is_sent(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http
) -> None:
    def lose_row(request: ApiRequest[Any], reply: Reply[Any]) -> Reply[Any]:
        if waiting(database) == ["a"]:
            database.execute(f"SELECT pg_terminate_backend(pid, 5000) {OF_RELAYS}")
            [position] = database.execute("DELETE FROM deferd.outbox RETURNING position").fetchone() or [0]
            database.execute("SELECT setval('deferd.outbox_position', %s)", (position - 2,))
            database.execute(PUT, (http.topic, "", "b"))
            assert database.execute("SELECT position FROM deferd.outbox").fetchone() == (position,)
        return reply

    database.execute("SELECT setval('deferd.outbox_position', 10)")
    database.execute(PUT, (http.topic, "", "a"))
    async with relaying(outbox_url, WatchedService(shared_service.url, lose_row)):
        await until_sent(database)
    assert await job_ids(http) == ["a", "b"]


async def test_a_relay_that_is_killed_before_it_deletes_rows_leaves_no_cancelled_job(
    shared_service: ServiceProcess, outbox_url: str, database: Database, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    def kill(request: ApiRequest[Any], reply: Reply[Any]) -> Reply[Any]:
        if request.path == "/jobs/cancel":
            raise Killed
        return reply

    monkeypatch.setattr(relay, "TAKEOVER_S", 0.1)
    with database.transaction():
        put = "SELECT deferd.put(%s, id => 'a', tags => array[%s], on_conflict => 'replace')"
        database.execute(put, (http.topic, http.topic))
        database.execute("SELECT deferd.cancel_tag(%s)", (http.topic,))
    with pytest.raises(Killed):
        await Relay(outbox_url, WatchedService(shared_service.url, kill)).run(asyncio.Event())
    assert waiting(database) == ["a", None]
    async with relaying(outbox_url, shared_service.url):
        await until_sent(database)
    assert await job_ids(http) == []


@pytest.mark.parametrize("is_late", [False, True], ids=["before a proof", "while a proof is late"])
async def test_nothing_is_sent_by_a_relay_that_may_have_lost_its_lock(
    shared_service: ServiceProcess,
    outbox_url: str,
    database: Database,
    http: Http,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_late: bool,
) -> None:
    monkeypatch.setattr(relay, "CONFIRMED_S", 0.02)
    age = "SELECT pg_sleep(0.03)"  # until what was shown before is too old
    reconnected: list[bool] = []
    first = 0

    def break_connection(request: ApiRequest[Any], reply: Reply[Any]) -> Reply[Any]:
        nonlocal first
        [pid] = database.execute(f"SELECT pid {OF_RELAYS}").fetchone() or [0]
        if not first:
            first = pid
            if not is_late:
                database.execute(f"SELECT pg_terminate_backend(pid, 5000) {OF_RELAYS}")
            database.execute(age)
        else:
            reconnected.append(pid not in {0, first})
        return reply

    async def settle(outbox: OutboxDatabase, *what: Any) -> None:
        await settle_in_time(outbox, *what)
        if is_late and first and not late:
            late.append(True)
            database.execute(f"SELECT pg_terminate_backend(pid, 5000) {OF_RELAYS}")
            database.execute(age)

    late: list[bool] = []
    settle_in_time = OutboxDatabase.settle
    monkeypatch.setattr(OutboxDatabase, "settle", settle)

    service = WatchedService(shared_service.url, break_connection)
    with database.transaction():
        for body in ("1", "2", "3"):
            put = "SELECT deferd.put(%s, %s::jsonb, id => 'a', on_conflict => 'replace')"
            database.execute(put, (http.topic, body))
    async with relaying(outbox_url, service):
        await until_sent(database)
    assert reconnected == [True, True]
    assert ok(await http.get(http.job_path("a")))["body"] == 3


async def test_a_relay_stops_while_the_service_does_not_respond(outbox_url: str, database: Database) -> None:
    database.execute(PUT, ("topic", "", "a"))
    service = WatchedService("http://127.0.0.1:9")
    async with relaying(outbox_url, service):
        await until(lambda: len(service.requests) > 1, "it tries")
        stopping_at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - stopping_at < 5
    assert waiting(database) == ["a"]
