"""What happened in a topic: over HTTP, through the client, as a command, with keys, and by several processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deferd import Client, Forbidden, PutJob, TopicNotFound
from deferd.client import History
from deferd.client.requests import ApiRequest
from deferd.console.rendering import duration
from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.cli.command_line import Shell, terminal
from tests.acceptance.console.conftest import KeyedService, console
from tests.acceptance.http_calls import Http, refusal
from tests.acceptance.service_process import ServiceProcess, running_service

COLUMNS = {
    "at", "put", "popped", "finished", "released", "dead", "cancelled", "lateness_p50", "lateness_p99",
    "run_time_p50", "run_time_p99", "delayed", "ready", "reserved", "dead_jobs",
}  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(Path(tmp_path_factory.mktemp("keys")) / "keys.toml")
    keys.add("all", "put", "pop", "cancel", "read", "admin")
    keys.add("shop", "read", topics=("shop.*",))
    keys.add("putter", "put")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--test-clock", "--keys-file", str(keys.path), "--shards", "3")
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("deferd")) as service:
        service.wait_ready()
        yield service


@pytest.fixture
def client(service: ServiceProcess, keys: KeysFile) -> Iterator[Client]:
    with Client(service.url, key=keys.tokens["all"]) as client:
        yield client


def advance(client: Client, seconds: float) -> None:
    body = f'{{"advance": {seconds}}}'.encode()
    client.send(ApiRequest("POST", "/testing/clock", lambda content: content, body=body, repeatable=False))


def begin_five_minutes(client: Client) -> None:
    """Move the clock to the begin of a bucket of five minutes: what a test does within seconds is then in one."""
    present = client.put("present").created_at
    advance(client, 300 - present.timestamp() % 300)


def total(found: History) -> dict[str, int]:
    names = ("put", "popped", "finished", "released", "dead", "cancelled")
    return {name: count for name in names if (count := sum(found.column(name)))}


def do_a_bit(client: Client, topic: str) -> None:
    for number in range(5):
        client.put(topic, id=f"j{number}")
    client.put(topic, id="late", delay=3600)
    first, second, third, *_ = client.pop(topic, count=4)
    advance(client, 1.5)
    client.finish(first)
    client.release(second, delay=60)
    client.bury(third)
    client.cancel(topic, "late")


def test_columns(client: Client, service: ServiceProcess, keys: KeysFile) -> None:
    begin_five_minutes(client)
    do_a_bit(client, "columns")
    advance(client, 10)
    found = client.history("columns")
    assert found.fields.keys() == {"topic", "bucket", "from", "to", "whole", "buckets"}
    assert found.fields["buckets"].keys() == COLUMNS
    assert {len(column) for column in found.fields["buckets"].values()} == {360}
    assert (found.topic, found.bucket, found.ends_at - found.begins_at) == ("columns", 10, timedelta(hours=1))
    assert found.at[0] == found.begins_at
    assert found.at[-1] == found.ends_at - timedelta(seconds=10)
    assert total(found) == {"put": 6, "popped": 4, "finished": 1, "released": 1, "dead": 1, "cancelled": 1}
    assert {at: found.column(at)[-1] for at in ("delayed", "ready", "reserved", "dead_jobs")} == {
        "delayed": 1, "ready": 1, "reserved": 1, "dead_jobs": 1,
    }  # fmt: skip
    late = [number for number in found.lateness_p50 if number is not None]
    assert 0 <= late[0] <= (max(number for number in found.lateness_p99 if number is not None)) < 5
    [seen] = client.overview(name="columns", ready_history=True).topics
    assert seen.ready_history == [*([None] * 35), 1]
    assert client.overview(name="columns").topics[0].ready_history is None
    [run_time] = [number for number in found.run_time_p50 if number is not None]
    assert 1 < run_time < 5
    assert [number for number in found.run_time_p99 if number is not None] >= [run_time]
    assert found.whole.run_time_p50 == run_time
    assert found.whole.lateness_p50 == late[0]
    with console(KeyedService(service, keys), "all") as browser:
        page = browser.get("/console/topics/columns").text
    assert f"<dt>Run time of finished jobs</dt><dd>p50 {duration(run_time)}, p99 " in page
    long = client.history("columns", minutes=61)
    assert (long.bucket, total(long)) == (300, total(found))
    assert len(long.put) in {13, 14}


def test_invalid_parameters(client: Client, service: ServiceProcess) -> None:
    with pytest.raises(TopicNotFound):
        client.history("unknown")


@pytest.mark.parametrize("minutes", ["0", "2881", "x", "1.5"])
@pytest.mark.parametrize("path", ["/history", "/topics/a/history"])
async def test_other_numbers_of_minutes_are_refused(http: Http, path: str, minutes: str) -> None:
    assert refusal(await http.get(path, params={"minutes": minutes}), "query.minutes")


def test_a_key_sees_its_topics_only(service: ServiceProcess, keys: KeysFile, client: Client) -> None:
    before = total(client.history_of_all()).get("put", 0)
    for topic, jobs in {"shop.a": 2, "shop.b": 3, "bank.a": 4}.items():
        for _ in range(jobs):
            client.put(topic)
    advance(client, 20)  # what was read before is kept for 10 s of real time
    with Client(service.url, key=keys.tokens["shop"]) as shop:
        assert total(shop.history("shop.a")) == {"put": 2}
        of_all = shop.history_of_all()
        assert (of_all.topic, total(of_all), of_all.fields["complete"]) == (None, {"put": 5}, True)
        with pytest.raises(Forbidden, match="bank"):
            shop.history("bank.a")
    found = client.history_of_all(minutes=59)
    assert total(found)["put"] >= before + 9
    with Client(service.url, key=keys.tokens["putter"]) as putter, pytest.raises(Forbidden, match="read"):
        putter.history("shop.a")


def test_what_was_handled_is_beside_the_forecast(client: Client) -> None:
    client.put("handled", id="later", delay=1800)
    for _ in range(30):
        client.put("handled")
        client.finish(client.pop("handled")[0])
    advance(client, 10)
    made = client.forecast(topics="handled", buckets=6)
    [topic] = made.topics
    assert topic.handled == made.handled
    assert topic.handled is not None
    assert 29 <= topic.handled <= 33  # of an hour
    assert (client.forecast(topics="columns").handled or 0) < 1


def test_command(service: ServiceProcess, keys: KeysFile, client: Client) -> None:
    do_a_bit(client, "drawn")
    advance(client, 10)
    shell = Shell(service.url)
    lines = shell.good("history", "drawn", "--key", keys.tokens["all"]).splitlines()
    assert lines[0].startswith("drawn, ")
    assert lines[0].endswith(", 10s each")
    rows = {line[:9].strip(): line[9:].split() for line in lines[2:]}
    assert list(rows) == [
        "put", "popped", "finished", "released", "dead", "cancelled", "late p50", "late p99", "ran p50", "ran p99",
        "delayed", "ready", "reserved", "dead jobs",
    ]  # fmt: skip
    assert rows["put"][1:] == ["6", "6", "█"]
    assert rows["ready"] == ["1", "1", "█"]
    assert rows["ran p50"][-1] == "█"
    lines = shell.good("history", "--span", "24h", "--key", keys.tokens["all"]).splitlines()
    assert lines[0].startswith("all topics, ")
    [fields] = shell.json("history", "drawn", "--key", keys.tokens["all"])
    assert set(fields["buckets"]) == COLUMNS
    assert "--span must be" in shell.refused(2, "history", "drawn", "--span", "3d")


@pytest.mark.parametrize("columns", [60, pytest.param(250, marks=pytest.mark.slow)])
def test_it_fits_the_terminal(service: ServiceProcess, keys: KeysFile, client: Client, columns: int) -> None:
    client.put("fit", on_conflict="keep", id="a", delay=600)
    advance(client, 10)
    words = ("history", "fit", "--key", keys.tokens["all"])
    with terminal(service.url, *words, size=(40, columns)) as shown:
        assert shown.end() == 0
        bars = [line for line in shown.text.splitlines() if "█" in line]
        assert bars
        assert all(len(line.rstrip()) <= columns for line in bars)


@pytest.mark.slow
def test_several_processes_add_up_and_publish_when_they_stop(tmp_path: Path) -> None:
    flags = ("--workers", "2", "--test-clock")
    with running_service(*flags, data_dir=tmp_path) as service:
        service.wait_ready()
        for turn in range(20):
            with Client(service.url) as client:  # with a connection of its own, to any of the processes
                client.put_batch([PutJob(topic="both", id=f"{turn}-{number}") for number in range(10)])
                for job in client.pop("both", count=3):
                    client.finish(job)
    with running_service(*flags, data_dir=tmp_path) as service, Client(service.url) as client:
        service.wait_ready()
        advance(client, 10)
        assert total(client.history("both")) == {"put": 200, "popped": 60, "finished": 60}
        assert total(client.history_of_all()) == {"put": 200, "popped": 60, "finished": 60}
