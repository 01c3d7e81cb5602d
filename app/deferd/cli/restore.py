"""`deferd restore`: puts a backup into a data folder, after it was loaded and counted beside it.

The files wait in a folder of their own inside the data folder. Only when they have proved good, old data are moved
aside and they take its place, by two renames. A service refuses a data folder that was left between the two.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from deferd.cli import exit_codes, output
from deferd.cli.store_access import Contents, data_folder, load_and_count, run_to_end
from deferd.store.append_only import sync_directory
from deferd.store.backup import Backup, copy_backup, read_backup
from deferd.store.data_dir import APPEND_ONLY_DIR, MOVED_ASIDE, UNFINISHED_RESTORE, DataDirectory
from deferd.store.preflight import StoreRefused


def restore(given: argparse.Namespace) -> int:
    """Restore a backup into a data folder that no service uses."""
    return run_to_end(lambda: _restore(given))


def _restore(given: argparse.Namespace) -> int:
    source, target = Path(given.folder), data_folder(given)
    backup = read_backup(source)
    with _owned(target):
        old_data = target / APPEND_ONLY_DIR
        if old_data.exists() and not given.force:
            raise StoreRefused(
                f"the data folder {target} has data already: name another one (--data-dir), or give --force, which "
                "moves the old data aside and keeps it"
            )
        contents = _prove(source, backup, target / UNFINISHED_RESTORE)
        aside = _swap(target)
    if given.json:
        restored = {"data_dir": str(target), "topics": contents.topics, "counts": contents.counts}
        output.json_line({**restored, "old_data": None if aside is None else str(aside)})
        return exit_codes.DONE
    facts = [("backup of", backup.taken_at), ("restored to", str(target)), ("topics", f"{contents.topics:,}")]
    facts += [(state, f"{count:,}") for state, count in contents.counts.items()]
    if aside is not None:
        facts.append(("old data", f"{aside}; delete it when it is not needed"))
    output.show_facts(facts)
    return exit_codes.DONE


def _prove(source: Path, backup: Backup, staging: Path) -> Contents:
    """Copy the backup into `staging`, load it there and count. On failure nothing is left."""
    shutil.rmtree(staging, ignore_errors=True)  # of a restore that was killed
    try:
        staging.mkdir(mode=0o700)
        copy_backup(source, backup, staging)
        contents = load_and_count(staging)
        _compare(source, backup, contents)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return contents


def _compare(source: Path, backup: Backup, contents: Contents) -> None:
    if backup.counts is not None and contents.counts != backup.counts:
        raise StoreRefused(
            f"the backup in {source} holds {_text(contents.counts)}, and was saved with {_text(backup.counts)}: "
            "restore another one"
        )


def _swap(target: Path) -> Path | None:
    """Put the data that was proved good in the place of the old, and return where that is now."""
    aside = None
    if (target / APPEND_ONLY_DIR).exists():
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        aside = target / f"{APPEND_ONLY_DIR}{MOVED_ASIDE}{now}-{os.getpid()}"
        (target / APPEND_ONLY_DIR).rename(aside)
    (target / UNFINISHED_RESTORE / APPEND_ONLY_DIR).rename(target / APPEND_ONLY_DIR)
    sync_directory(target)
    shutil.rmtree(target / UNFINISHED_RESTORE, ignore_errors=True)
    return aside


@contextmanager
def _owned(path: Path) -> Iterator[None]:
    """Keep services and stores off the data folder.

    Raises:
        StoreRefused: one uses it.
    """
    folder = DataDirectory(path)
    folder.claim()
    try:
        lock = folder.try_store_lock()
        if lock is None:
            raise StoreRefused(
                f"a store (process {folder.store_pid()}) that a service left behind still works in the data folder "
                f"{path}: end it first"
            )
        try:
            yield
        finally:
            os.close(lock)
    finally:
        folder.release()


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())
