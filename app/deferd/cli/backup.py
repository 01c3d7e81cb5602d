"""`deferd backup`: a copy of an embedded store's data, of a running service or a stopped one, that was tried out.

Until it is complete it is in the folder `unfinished` inside the target, which is made exclusively: a backup that was
killed leaves that, and no second one is mixed with it.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from deferd.cli import exit_codes, output
from deferd.cli.store_access import data_folder, load_and_count, run_to_end
from deferd.store.append_only import copy_data, sync_files
from deferd.store.backup import Backup, write_backup
from deferd.store.data_dir import APPEND_ONLY_DIR, DataDirectory
from deferd.store.preflight import StoreRefused

_UNFINISHED = "unfinished"


def backup(given: argparse.Namespace) -> int:
    """Make a backup, and load it to see that it works unless told not to."""
    return run_to_end(lambda: _backup(given))


def _backup(given: argparse.Namespace) -> int:
    target, source = Path(given.folder), data_folder(given)
    is_new = not target.exists()
    staging = _make_staging(target)
    try:
        made = _fill(staging, source, verify=given.verify)
        (staging / APPEND_ONLY_DIR).rename(target / APPEND_ONLY_DIR)
        try:
            write_backup(target, made)
        except BaseException:
            shutil.rmtree(target / APPEND_ONLY_DIR, ignore_errors=True)
            raise
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                target.rmdir()
        raise
    shutil.rmtree(staging, ignore_errors=True)
    if given.json:
        output.json_line({"folder": str(target), **made.to_json()})
        return exit_codes.DONE
    facts = [("backup of", str(source)), ("is in", str(target)), ("size", f"{made.size:,} bytes")]
    if made.counts is None:
        facts.append(("jobs", "not counted: it was not loaded (--no-verify)"))
    else:
        facts += [("topics", f"{made.topics:,}"), *((state, f"{count:,}") for state, count in made.counts.items())]
    output.show_facts(facts)
    return exit_codes.DONE


def _make_staging(target: Path) -> Path:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging = target / _UNFINISHED
    if staging.exists():
        raise StoreRefused(
            f"{target} has a backup that is under way or was cut short: if none runs, empty that folder and try again"
        )
    if any(target.iterdir()):
        raise StoreRefused(f"{target} is not empty: name a folder that is, or a new one, such as {target}-2")
    staging.mkdir(mode=0o700)
    return staging


def _fill(staging: Path, source: Path, *, verify: bool) -> Backup:
    taken_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    copy_data(DataDirectory(source), staging)
    made = Backup(metadata.version("deferd"), None, taken_at, None, None, None, ())
    if verify:
        made = replace(made, **load_and_count(staging)._asdict())
    # Loading cuts off an incomplete command at the end, so the checksums come after it.
    return replace(made, files=tuple(sync_files(staging)))
