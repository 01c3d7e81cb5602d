"""`deferd copy` between stores of every kind, and the services that serve them before and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deferd import Client
from deferd.cli.service.store_copies import clock_warning, conclude, show_table
from deferd.contract.model import JobState
from deferd.engine.store_copy import CopyReport, Inventory
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.cli.every_state import BIG, PAUSED, TOPIC, StoredJobs, assert_unchanged, fill
from tests.acceptance.cli.preloaded_shell import PreloadedShell
from tests.acceptance.service_process import running_service
from tests.integration.store.store_servers import ClusterSet, StoreServer

COUNTS = {
    BIG: {"delayed": 5, "ready": 0, "reserved": 0, "dead": 0, "finished": 0},
    PAUSED: {"delayed": 0, "ready": 1, "reserved": 0, "dead": 0, "finished": 0},
    TOPIC: {"delayed": 3, "ready": 30, "reserved": 2, "dead": 1, "finished": 1},
}
TOTALS = {"delayed": 8, "ready": 31, "reserved": 2, "dead": 1, "finished": 1}


@pytest.fixture
def shell() -> Shell:
    """Of commands that need no service."""
    return PreloadedShell("http://127.0.0.1:9")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "store") as store:
        yield store.mark_used()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, StoredJobs]:
    """The data directory of a stopped service with jobs in every state."""
    with running_service(data_dir=tmp_path_factory.mktemp("source")) as service, Client(service.url) as client:
        filled = fill(client)
    return str(service.data_dir), filled


@pytest.mark.slow
def test_an_embedded_store_is_moved_to_a_server_and_back(
    source: tuple[str, StoredJobs], shell: Shell, store: StoreServer, tmp_path: Path
) -> None:
    data_dir, filled = source
    *topics, total = shell.json("copy", "--from", data_dir, "--to", store.url)
    assert {row["topic"]: row["from"] for row in topics} == COUNTS
    assert all(row["from"] == row["to"] and row["adds_up"] for row in topics)
    assert (total["from"], total["to"], total["adds_up"], total["shards"]) == (TOTALS, TOTALS, True, 1)
    assert abs(total["clocks_apart_ms"]) < 5000

    back = tmp_path / "back" / "data"
    text = shell.good("copy", "--from", store.url, "--to", str(back))
    heading, *rows, all_topics = [line.split() for line in text.splitlines()]
    assert heading == ["TOPIC", "DELAYED", "READY", "RESERVED", "DEAD", "FINISHED", "COPIED"]
    assert rows == [[name, *map(str, counts.values()), "all"] for name, counts in COUNTS.items()]
    assert all_topics == ["(all", "topics)", *map(str, TOTALS.values()), "all"]

    for folder, flags in (("s", ("--redis-url", store.url)), ("back", ())):
        with running_service(*flags, data_dir=tmp_path / folder) as service, Client(service.url) as client:
            assert_unchanged(client, filled)


@pytest.mark.slow
@pytest.mark.usefixtures("older_redis")
def test_an_embedded_store_is_moved_to_an_older_redis(
    source: tuple[str, StoredJobs], shell: Shell, tmp_path: Path
) -> None:
    data_dir, filled = source
    with StoreServer(tmp_path / "redis") as redis:
        assert "valkey_version" not in redis.command("INFO", "server")
        shell.good("copy", "--from", data_dir, "--to", redis.url)
        with (
            running_service("--redis-url", redis.url, data_dir=tmp_path / "s") as service,
            Client(service.url) as client,
        ):
            assert_unchanged(client, filled)


@pytest.mark.slow
def test_an_embedded_store_is_moved_to_a_cluster(source: tuple[str, StoredJobs], shell: Shell, tmp_path: Path) -> None:
    data_dir, filled = source
    with ClusterSet(tmp_path / "cluster") as cluster:
        cluster.mark_used(shards=5)
        *_, total = shell.json("copy", "--from", data_dir, "--to", cluster.url, "--shards", "5")
        assert (total["to"], total["shards"]) == (TOTALS, 5)
        flags = ("--redis-url", cluster.url, "--shards", "5")
        with running_service(*flags, data_dir=tmp_path / "s") as service, Client(service.url) as client:
            assert_unchanged(client, filled)


@pytest.mark.slow
def test_a_store_that_is_served_is_refused(shell: Shell, store: StoreServer, tmp_path: Path) -> None:
    with running_service("--redis-url", store.url, data_dir=tmp_path / "a") as service, Client(service.url) as client:
        client.put("orders", id="a", delay=3600)
        target = str(tmp_path / "target")
        refusal = shell.refused(1, "copy", "--from", store.url, "--to", target)
        assert f"uses the store at {store.url}: stop it first" in refusal
        with running_service(data_dir=tmp_path / "b") as embedded:
            refusal = shell.refused(1, "copy", "--from", str(embedded.data_dir), "--to", target)
            assert f"the data directory {embedded.data_dir} is in use by another deferd service" in refusal
        assert [row["adds_up"] for row in shell.json("copy", "--from", store.url, "--to", target, "--force")] == [
            True,
            True,
        ]


@pytest.mark.slow
def test_a_target_with_jobs_is_refused_and_keeps_them(
    source: tuple[str, StoredJobs], shell: Shell, store: StoreServer
) -> None:
    copied = shell.run("copy", "--json", DEFERD_COPY_FROM=source[0], DEFERD_COPY_TO=store.url)
    assert (copied.returncode, copied.stderr) == (0, "")
    keys = set(store.command("KEYS", "*"))

    refusal = shell.refused(1, "copy", "--from", source[0], "--to", store.url)

    assert f"the store at {store.url} has jobs or topics of deferd already" in refusal
    assert set(store.command("KEYS", "*")) == keys
    assert shell.good("copy", "--from", source[0], "--to", f"{store.url}/1")


@pytest.mark.slow
def test_a_copy_that_fails_names_the_store_and_no_service_serves_its_target(
    shell: Shell, store: StoreServer, tmp_path: Path
) -> None:
    with running_service(data_dir=tmp_path / "large") as service, Client(service.url) as client:
        for _ in range(30):
            client.put("large", "x" * 500_000, delay=3600)
    used = int(store.command("INFO", "memory")["used_memory"])
    store.command("CONFIG", "SET", "maxmemory", used + 8_000_000)  # half of the jobs, far more than connections take
    failed = shell.refused(1, "copy", "--from", str(service.data_dir), "--to", store.url)
    assert f"the store at {store.url} failed: the store is out of memory" in failed
    store.command("CONFIG", "SET", "maxmemory", 0)

    served = shell.run("serve", "--port", "0", "--redis-url", store.url, "--data-dir", str(tmp_path / "s"))
    assert served.returncode == 1
    assert "is being filled by `deferd copy`, or that was interrupted" in served.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--to", "redis://h"], 2, "--from (DEFERD_COPY_FROM) is missing: a store URL, or the data directory"),
        (["--from", "redis://h"], 2, "--to (DEFERD_COPY_TO) is missing"),
        (["--from", "redis://h", "--to", "redis://h"], 2, "--from and --to are the same store"),
        (
            ["--from", "redis://h", "--to", "h:6379"],
            2,
            "must be a store URL, such as redis://h:6379, or a data directory",
        ),
        (["--from", "redis://:sesame@", "--to", "x"], 2, "--from has a value that is not shown, but must be a store"),
        (["--from", "no-folder", "--to", "x"], 1, "the data directory no-folder (--from) has no data"),
        (["--from", "redis://127.0.0.1:1", "--to", "redis://h", "--shards", "0"], 2, "--shards: '0' is not at least 1"),
        (["--from", "redis://127.0.0.1:1", "--to", "redis://127.0.0.1:2"], 1, "redis://127.0.0.1:1 failed: the store"),
    ],
)
def test_wrong_arguments_and_stores_are_reported_in_one_line(
    shell: Shell, words: list[str], code: int, text: str
) -> None:
    message = shell.refused(code, "copy", *words)
    assert text in message
    assert "sesame" not in message


COUNTED = Inventory({"t": {JobState.READY: 2}}, {"pool": 2, "topics": 1})
ONE_LESS = Inventory({"t": {JobState.READY: 1}}, {"pool": 1, "topics": 1})


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (CopyReport(COUNTED, COUNTED, ONE_LESS, 1), "b does not hold what a holds (pool: 1 instead of 2)"),
        (CopyReport(COUNTED, ONE_LESS, COUNTED, 1), "a changed while it was copied: stop the services that use it"),
    ],
)
def test_counts_that_do_not_add_up_end_with_1_and_are_shown(
    report: CopyReport, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_table(report)
    assert conclude(report, "a", "b") == 1

    shown = capsys.readouterr()
    assert message in shown.err
    rows = [line.split() for line in shown.out.splitlines()[1:]]
    copied = "1 of 2" if report.target == ONE_LESS else "2"
    assert rows[0] == ["t", "0", *copied.split(), "0", "0", "0", *("all" if copied == "2" else "NOT ALL").split()]
    assert rows[1][-2:] == ["NOT", "ALL"]


@pytest.mark.parametrize(
    ("apart_ms", "text"),
    [
        (1000, None),
        (-1000, None),
        (2500, "2.5 s ahead of the source's: jobs will be due so much earlier"),
        (-90_000, "90.0 s behind the source's: jobs will be due so much later"),
    ],
)
def test_a_clock_difference_is_reported(apart_ms: int, text: str | None) -> None:
    warning = clock_warning(apart_ms)
    assert warning == (None if text is None else f"the clock of the target is {text}")
