"""`deferd backup`: a verified copy of an embedded store's data, of a running service or a stopped one.

An incomplete backup is in the subdirectory `unfinished` of the target, which is created exclusively: a backup that was
killed leaves it, and a second backup is never mixed with the first.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import click

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import command
from deferd.cli.framework.options import json_option
from deferd.cli.service.store_access import data_dir_option, load_and_count, run_to_end
from deferd.contract.timestamps import format_instant
from deferd.store.append_only import copy_data, sync_files
from deferd.store.backup import Backup, write_backup
from deferd.store.backup_check import check_backup_files
from deferd.store.backup_functions import take_out_functions
from deferd.store.data_dir import APPEND_ONLY_DIR, DataDirectory
from deferd.store.preflight import StoreRefused

_UNFINISHED = "unfinished"


@command("deferd backup /backups/deferd-1", "deferd backup /backups/deferd-1 --data-dir /var/lib/deferd --json")
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path), help="a new or empty directory")
@data_dir_option
@json_option("print JSON")
@click.option("--no-verify", is_flag=True, help="do not load the copy, which takes as much memory as the data")
def backup(target: Path, data_dir: Path, as_json: bool, no_verify: bool) -> int:
    """Copy the data of an embedded store into DIR, which must be new or empty. A running service is not disturbed, and
    everything that was acknowledged before the backup began is in it. The copy is loaded once, to count its jobs and to
    check that it works.
    """
    return run_to_end(lambda: _backup(target, data_dir.expanduser(), as_json=as_json, verify=not no_verify))


def _backup(target: Path, source: Path, *, as_json: bool, verify: bool) -> int:
    is_new = not target.exists()
    staging = _make_staging(target)
    try:
        made = _fill(staging, source, verify=verify)
        (staging / APPEND_ONLY_DIR).rename(target / APPEND_ONLY_DIR)
        try:
            write_backup(target, made)
        except BaseException:
            shutil.rmtree(target / APPEND_ONLY_DIR, ignore_errors=True)
            raise
    except BaseException as exc:
        if isinstance(exc, OSError) and exc.filename is None:  # a write that fails names no file
            exc.filename = str(target)
        shutil.rmtree(staging, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                target.rmdir()
        raise
    shutil.rmtree(staging, ignore_errors=True)
    facts = [("backup of", str(source)), ("is in", str(target)), ("size", f"{made.size:,} bytes")]
    if made.counts is None:
        facts.append(("jobs", "not counted: it was not loaded (--no-verify)"))
    else:
        facts += [("topics", f"{made.topics:,}"), *((state, f"{count:,}") for state, count in made.counts.items())]
    output.json_or_facts({"folder": str(target), **made.to_json()}, facts, as_json=as_json)
    return exit_codes.DONE


def _make_staging(target: Path) -> Path:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging = target / _UNFINISHED
    if staging.exists():
        raise StoreRefused(
            f"{target} has a backup that is running or was interrupted: if none is running, empty it and try again"
        )
    if any(target.iterdir()):
        raise StoreRefused(f"{target} is not empty: name an empty or a new directory, such as {target}-2")
    staging.mkdir(mode=0o700)
    return staging


def _fill(staging: Path, source: Path, *, verify: bool) -> Backup:
    taken_at = format_instant(datetime.now(UTC))
    copy_data(DataDirectory(source), staging)
    made = Backup(metadata.version("deferd"), None, taken_at, None, None, None, ())
    if verify:  # before the functions go: with them goes the checksum of a snapshot, which loading verifies
        made = replace(made, **load_and_count(staging)._asdict())
    take_out_functions(staging)
    if verify:
        check_backup_files(staging)  # what a restore would refuse is found now
    # Loading truncates an incomplete command at the end of the file, so the checksums are taken afterwards.
    return replace(made, files=tuple(sync_files(staging)))
