"""What a restore accepts of the files of a backup: all that deferd writes, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deferd.engine.scripts import library
from deferd.store.backup import MANIFEST
from deferd.store.backup_contents import (
    KEYS_COMMANDS,
    ONE_KEY_COMMANDS,
    _without_effect,
    check_backup_files,
    take_out_functions,
)
from deferd.store.data_dir import APPEND_ONLY_DIR
from deferd.store.pipeline import pack
from deferd.store.preflight import StoreRefused
from tests.integration.store.store_servers import StoreServer
from tests.unit.store.test_preflight import commands_of_scripts, commands_outside_scripts
from tests.waiting import wait_until

PUT = pack(("HSET", "deferd:{0}:a:pool", "1", "x"))
AS_REPLICATED = {"PEXPIRE": "PEXPIREAT"}
"""What a server writes in place of a command."""


@pytest.fixture(scope="module")
def running_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("saved")) as server:
        yield server


@pytest.fixture
def store(running_store: StoreServer) -> StoreServer:
    running_store.command("FLUSHALL")
    running_store.command("FUNCTION", "FLUSH")
    return running_store


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The append-only directory of a backup."""
    directory = tmp_path / APPEND_ONLY_DIR
    directory.mkdir()
    (directory / MANIFEST).write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    return directory


def fill(store: StoreServer) -> None:
    """Values of each kind, small and large, with numbers, text that can be packed, and text that can't."""
    texts = ["7", "-300", "70000", "4000000000", "a" * 100, "".join(map(chr, range(33, 126))) * 200, "x" * 20_000]
    for name, count in (("small", 1), ("large", 100)):
        key = f"deferd:{{0}}:{'topic' * 30}{name}:"
        members = [f"{text}{number}" for number in range(count) for text in texts]
        with store.client() as client, client.pipeline(transaction=False) as calls:
            calls.set(f"{key}text", texts[-1]).set(f"{key}number", 70_000, px=3_600_000)
            for member in members[: 3 if count == 1 else None]:
                calls.hset(f"{key}hash", member, member).zadd(f"{key}zset", {member: 1.5}).rpush(f"{key}list", member)
            calls.execute()


def test_all_that_deferd_writes_is_accepted_as_commands_and_in_a_snapshot(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "own", appendonly="yes") as store:
        check_commands_and_snapshot(store)


def check_commands_and_snapshot(store: StoreServer) -> None:
    fill(store)
    check_backup_files(store.folder)
    store.command("BGREWRITEAOF")
    wait_until(lambda: not store.command("INFO", "persistence")["aof_rewrite_in_progress"], 10, "the rewrite has ended")
    [snapshot] = (store.folder / APPEND_ONLY_DIR).glob("*.rdb")
    assert len(snapshot.read_bytes()) > 100_000
    with store.client() as client, client.pipeline(transaction=True) as calls:
        calls.hset("deferd:{0}:a:pool", "1", "x").unlink("deferd:{0}:a:pool", "deferd:{0}:b:pool")
        calls.execute()

    check_backup_files(store.folder)


def test_the_commands_that_deferd_sends_are_accepted_and_no_others(store: StoreServer) -> None:
    used = commands_of_scripts() | commands_outside_scripts()
    writing = {name for name in used if "write" in store.command("COMMAND", "INFO", name)[name.lower()]["flags"]}

    accepted = {name.decode() for name in ONE_KEY_COMMANDS | KEYS_COMMANDS}
    assert {AS_REPLICATED.get(name, name) for name in writing} == accepted


@pytest.mark.parametrize(
    "command",
    [
        ("REPLICAOF", "127.0.0.1", "6666"),
        ("replicaof", "127.0.0.1", "6666"),
        ("EVAL", "return 1", "1", "deferd:a"),
        ("EVAL", "return 'a'", "1", "deferd:a"),
        ("FUNCTION", "LOAD", "deferd:"),
        ("CONFIG", "SET", "dir", "deferd:"),
        ("SELECT", "1"),
        ("SET", "other", "deferd:a"),
        ("HSET",),
        ("RENAME", "deferd:a", "other"),
        ("DEL", "deferd:a", "other"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("where", ["commands", "snapshot"])
def test_another_command_or_key_is_refused(
    files: Path, store: StoreServer, command: tuple[str, ...], where: str
) -> None:
    """Also behind a snapshot, where a server goes on with commands."""
    before = PUT * 3 if where == "commands" else snapshot_of(store)
    (files / "x.aof").write_bytes(before + pack(command) + PUT)

    with pytest.raises(StoreRefused) as caught:
        check_backup_files(files.parent)

    assert f"x.aof of the backup holds the command {' '.join(command[:3])}" in str(caught.value)
    assert f" at byte {len(before)}, " in str(caught.value)
    assert "another program has written to the store, or somebody has changed the backup" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        b"PING\r\n",
        b"*2\r\n:1\r\n$1\r\na\r\n",
        b"#TS:1\r\n",
        b"#f\r\n",
        b"*-1\r\n",
        b">2\r\n" + PUT[4:],
        b"*1x\r\n$4\r\nEXEC\r\n",
        b"*%d\r\n$4\r\nEXEC\r\n" % 2**60,
    ],
    ids=["inline", "number", "note", "false", "null", "push", "length", "more than fits in memory"],
)
def test_what_is_not_a_command_as_a_server_writes_it_is_refused(files: Path, text: bytes) -> None:
    (files / "x.aof").write_bytes(PUT + text)

    with pytest.raises(StoreRefused, match=r"x\.aof of the backup holds .*byte"):
        check_backup_files(files.parent)


def test_an_incomplete_command_at_the_end_is_left_to_the_server_which_truncates_it(files: Path) -> None:
    (files / "x.aof").write_bytes(PUT + PUT[:-5])

    check_backup_files(files.parent)


def snapshot_of(store: StoreServer) -> bytes:
    store.command("SAVE")
    return (store.folder / "dump.rdb").read_bytes()


def other_database(store: StoreServer) -> None:
    with store.client(db=1) as client:
        client.set("deferd:a", "b")


LIBRARY = "#!lua name=other\nserver.register_function('f', function() return 1 end)"
FOREIGN: dict[str, Callable[[StoreServer], object]] = {
    r"a key that begins with \\x05other": lambda store: store.command("SET", "other", "b"),
    r"a key that begins with": lambda store: store.command("SET", "other" * 50, "b"),
    r"an unknown length at byte": lambda store: store.command("SET", "123", "b"),
    r"an entry of type 254 at byte": other_database,
    r"an entry of type 245 at byte": lambda store: store.command("FUNCTION", "LOAD", LIBRARY),
    r"an entry of type 20 at byte": lambda store: store.command("SADD", "deferd:a", "b"),
    r"an entry of type 21 at byte": lambda store: store.command("XADD", "deferd:a", "*", "b", "c"),
}


@pytest.mark.parametrize("found", FOREIGN)
def test_something_else_in_a_snapshot_is_refused(files: Path, store: StoreServer, found: str) -> None:
    FOREIGN[found](store)
    (files / "x.rdb").write_bytes(snapshot_of(store))

    with pytest.raises(StoreRefused, match=rf"x\.rdb of the backup holds {found}"):
        check_backup_files(files.parent)


def test_a_snapshot_of_a_version_without_a_checksum_is_refused(files: Path) -> None:
    """A server goes on with commands eight bytes earlier there."""
    (files / "x.rdb").write_bytes(b"REDIS0004\xff" + b"*1\r\n$8\r\n" + PUT)

    with pytest.raises(StoreRefused, match=r"x\.rdb of the backup holds something other than a command near byte 0"):
        check_backup_files(files.parent)


def test_a_snapshot_without_an_end_is_refused_wherever_it_stops(files: Path, store: StoreServer) -> None:
    store.command("HSET", "deferd:{0}:a:pool", "1", "x" * 300)
    snapshot = snapshot_of(store)
    shutil.rmtree(files)
    files.mkdir()
    for length in range(9, len(snapshot) - 9):
        (files / "x.rdb").write_bytes(snapshot[:length])
        with pytest.raises(StoreRefused, match=r"x\.rdb of the backup holds a (snapshot without an end|key)"):
            check_backup_files(files.parent)


# Functions

OTHER = "#!lua name=other\nredis.register_function('f', function() return 1 end)"


def use(store: StoreServer) -> None:
    """Load and delete libraries between writes."""
    for number, arguments in enumerate(
        [("LOAD", library(False).text), ("LOAD", OTHER), ("DELETE", "other"), ("LOAD", "REPLACE", OTHER)]
    ):
        store.command("FUNCTION", *arguments)
        store.command("HSET", "deferd:{0}:a:pool", str(number), "FUNCTION\r\n")


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_libraries_are_taken_out_and_all_else_is_kept(tmp_path: Path, is_rewritten: bool) -> None:
    with StoreServer(tmp_path / "own", appendonly="yes") as store:
        use(store)
        if is_rewritten:
            store.command("BGREWRITEAOF")
            wait_until(
                lambda: not store.command("INFO", "persistence")["aof_rewrite_in_progress"], 10, "the rewrite has ended"
            )
            store.command("FUNCTION", "FLUSH")
            store.command("HSET", "deferd:{0}:a:pool", "after", "1")
        before = store.command("HGETALL", "deferd:{0}:a:pool")
        store.stop()
        take_out_functions(store.folder)
        check_backup_files(store.folder)
        store.start()
        assert store.command("HGETALL", "deferd:{0}:a:pool") == before
        assert store.command("FUNCTION", "LIST") == []


def test_files_with_something_else_are_left_to_the_check(tmp_path: Path) -> None:
    directory = tmp_path / APPEND_ONLY_DIR
    directory.mkdir()
    (directory / MANIFEST).write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    content = pack(("HSET", "deferd:a", "b", "c")) + b"PING FUNCTION\r\n"
    (directory / "x.aof").write_bytes(content)
    take_out_functions(tmp_path)
    assert (directory / "x.aof").read_bytes() == content


def test_a_command_without_effect_has_any_size() -> None:
    shortest = len(pack((b"FUNCTION", b"FLUSH")))
    for size in (*range(shortest, 1300), *range(9_900, 10_200), *range(99_950, 100_100)):
        assert len(_without_effect(size)) == size
