"""`deferd restore`: restores a backup into a data directory, after loading and counting it.

The files are staged in a subdirectory. When they have been verified, the old data are moved aside and the new files
take their place, by two renames. A service refuses a data directory that was left between the two.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import command
from deferd.cli.framework.options import json_option
from deferd.cli.service.store_access import Contents, data_dir_option, load_and_count, run_to_end
from deferd.store.backup import Backup, copy_backup, read_backup
from deferd.store.backup_check import check_backup_files
from deferd.store.data_dir import APPEND_ONLY_DIR, MOVED_ASIDE, UNFINISHED_RESTORE, DataDirectory
from deferd.store.disk_sync import sync_directory
from deferd.store.preflight import StoreRefused


@command("deferd restore /backups/deferd-1 --data-dir /var/lib/deferd", "deferd restore /backups/deferd-1 --force")
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path), help="the backup")
@data_dir_option
@json_option("print JSON")
@click.option("--force", is_flag=True, help="if there are data already, move them aside and keep them")
def restore(source: Path, data_dir: Path, as_json: bool, force: bool) -> int:
    """Restore the backup in DIR into a data directory that no service uses. The backup is checked and loaded first. One
    that holds anything but data of deferd is refused.
    Jobs are as they were at the time of the backup: one that was finished or cancelled since then runs again.
    """
    return run_to_end(lambda: _restore(source, data_dir.expanduser(), as_json=as_json, force=force))


def _restore(source: Path, target: Path, *, as_json: bool, force: bool) -> int:
    backup = read_backup(source)
    with _owned(target):
        old_data = target / APPEND_ONLY_DIR
        if old_data.exists() and not force:
            raise StoreRefused(
                f"the data directory {target} has data already: choose another one (--data-dir), or give --force, "
                "which moves the old data aside and keeps it"
            )
        contents = _verify(source, backup, target / UNFINISHED_RESTORE)
        aside = _swap(target)
    facts = [("backup of", backup.taken_at), ("restored to", str(target)), ("topics", f"{contents.topics:,}")]
    facts += [(state, f"{count:,}") for state, count in contents.counts.items()]
    if aside is not None:
        facts.append(("old data", f"{aside}; delete it when you no longer need it"))
    restored = {"data_dir": str(target), "topics": contents.topics, "counts": contents.counts}
    fields = {**restored, "old_data": None if aside is None else str(aside)}
    output.json_or_facts(fields, facts, as_json=as_json)
    return exit_codes.DONE


def _verify(source: Path, backup: Backup, staging: Path) -> Contents:
    """Copy the backup into `staging`, load it there and count its jobs. On failure remove `staging`."""
    shutil.rmtree(staging, ignore_errors=True)  # left by a restore that was killed
    try:
        staging.mkdir(mode=0o700)
        copy_backup(source, backup, staging)
        check_backup_files(staging)
        contents = load_and_count(staging)
        _compare(source, backup, contents)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return contents


def _compare(source: Path, backup: Backup, contents: Contents) -> None:
    if backup.counts is not None and contents.counts != backup.counts:
        raise StoreRefused(
            f"the backup in {source} holds {_text(contents.counts)}, but had {_text(backup.counts)} when it was saved: "
            "restore another one"
        )


def _swap(target: Path) -> Path | None:
    """Replace the old data by the verified data, and return where the old data are now."""
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
    """Keep services and stores from using the data directory.

    Raises:
        StoreRefused: one is using it.
    """
    folder = DataDirectory(path)
    folder.claim()
    try:
        lock = folder.try_store_lock()
        if lock is None:
            raise StoreRefused(
                f"a store (process {folder.store_pid()}) that a service left behind still uses the data directory "
                f"{path}: stop it first"
            )
        try:
            yield
        finally:
            os.close(lock)
    finally:
        folder.release()


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())
