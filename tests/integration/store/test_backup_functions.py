"""A backup has no function libraries: they are taken out of its files, which a store then loads as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferd.engine.scripts import library
from deferd.store.backup import MANIFEST
from deferd.store.backup_contents import _without_effect, check_backup_files, take_out_functions
from deferd.store.data_dir import APPEND_ONLY_DIR
from deferd.store.pipeline import pack
from tests.integration.store.store_servers import StoreServer
from tests.waiting import wait_until

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
