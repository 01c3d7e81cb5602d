"""The commands that copy all data of a store: `backup`, `restore` and `copy`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import click

from deferd import __version__
from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import Decorator, json_option
from deferd.cli.framework.output import Column, complain
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.contract.timestamps import format_instant
from deferd.engine.store_copy import (
    CopyReport,
    Inventory,
    ShelvedJobs,
    check_shelved,
    clock_ms,
    copy_store,
    count_jobs,
    count_shelved,
    layout_of,
)
from deferd.settings import default_text, flag, variable
from deferd.shelf.still_files import still_files
from deferd.store.backup import (
    Backup,
    copy_backup,
    copy_data,
    has_data,
    leave_files_of_shelf,
    read_backup,
    sync_files,
    write_backup,
)
from deferd.store.backup_contents import check_backup_files, take_out_functions
from deferd.store.connection import Store, connect
from deferd.store.data_dir import APPEND_ONLY_DIR, MOVED_ASIDE, SHELF_DIR, UNFINISHED_RESTORE, DataDirectory
from deferd.store.disk import sync_directory
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused
from deferd.store.server_info import server_name
from deferd.store.url import StoreUrlError, parse_store_url

_CALL_TIMEOUT_S = 60.0
"""A call takes some milliseconds, but more when the store syncs a few MiB to a slow disk."""
_UNFINISHED = "unfinished"
_SHOWN_TOPICS = 40
"""Most topics with equal counts in the table."""
_CLOCKS_APART_MS = 1000
_REPORT_EVERY_S = 5.0
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+")
_data_dir_option: Final = click.option(
    flag("data_dir"),
    type=click.Path(path_type=Path),
    envvar=variable("data_dir"),
    default=default_text("data_dir"),
    metavar="DIR",
    help=f"the data directory of the service; default {default_text('data_dir')} [{variable('data_dir')}]",
)


@command("deferd backup /backups/deferd-1", "deferd backup /backups/deferd-1 --data-dir /var/lib/deferd --json")
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path), help="a new or empty directory")
@_data_dir_option
@json_option("print JSON")
@click.option("--no-verify", is_flag=True, help="do not load the copy, which takes as much memory as the data")
def backup(target: Path, data_dir: Path, as_json: bool, no_verify: bool) -> int:
    """Copy the data of an embedded store into DIR, which must be new or empty. A running service is not disturbed, and
    everything that was acknowledged before the backup began is in it, jobs on the shelf too. The copy is loaded once,
    to count its jobs and to check that it works.
    """
    return _run_to_end(lambda: _backup(target, data_dir.expanduser(), as_json=as_json, verify=not no_verify))


def _backup(target: Path, source: Path, *, as_json: bool, verify: bool) -> int:
    is_new = not target.exists()
    staging = _make_staging(target)
    try:
        made = _fill(staging, source, verify=verify)
        names = [name for name in (APPEND_ONLY_DIR, SHELF_DIR) if (staging / name).exists()]
        try:
            for name in names:
                (staging / name).rename(target / name)
            write_backup(target, made)
        except BaseException:
            for name in names:
                shutil.rmtree(target / name, ignore_errors=True)
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
    """A subdirectory for an incomplete backup, created exclusively.

    A backup that was killed leaves it, and a second backup is never mixed with the first.
    """
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
    copy_data(DataDirectory(source), staging, still_files)
    made = Backup(__version__, None, taken_at, None, None, None, ())
    if verify:  # before the functions go: with them goes the checksum of a snapshot, which loading verifies
        made = replace(made, **_load_and_count(staging)._asdict())
    take_out_functions(staging)
    if verify:
        check_backup_files(staging)  # what a restore would refuse is found now
    if (staging / SHELF_DIR).exists():
        leave_files_of_shelf(staging / SHELF_DIR)  # opening it has made others
    # Loading truncates an incomplete command at the end of the file, so the checksums are taken afterwards.
    return replace(made, files=tuple(sync_files(staging)))


@command("deferd restore /backups/deferd-1 --data-dir /var/lib/deferd", "deferd restore /backups/deferd-1 --force")
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path), help="the backup")
@_data_dir_option
@json_option("print JSON")
@click.option("--force", is_flag=True, help="if there are data already, move them aside and keep them")
def restore(source: Path, data_dir: Path, as_json: bool, force: bool) -> int:
    """Restore the backup in DIR into a data directory that no service uses. The backup is checked and loaded first. One
    that holds anything but data of deferd is refused.
    Jobs are as they were at the time of the backup: one that was finished or cancelled since then runs again.
    """
    return _run_to_end(lambda: _restore(source, data_dir.expanduser(), as_json=as_json, force=force))


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
    if aside:
        facts.append(("old data", f"{' and '.join(map(str, aside.values()))}; delete it when you no longer need it"))
    restored = {"data_dir": str(target), "topics": contents.topics, "counts": contents.counts}
    old = {name: str(path) for name, path in aside.items()}
    fields = {**restored, "old_data": old.get(APPEND_ONLY_DIR), "old_shelf": old.get(SHELF_DIR)}
    output.json_or_facts(fields, facts, as_json=as_json)
    return exit_codes.DONE


def _verify(source: Path, backup: Backup, staging: Path) -> _Contents:
    """Copy the backup into `staging`, load it there and count its jobs. On failure remove `staging`."""
    shutil.rmtree(staging, ignore_errors=True)  # left by a restore that was killed
    try:
        staging.mkdir(mode=0o700)
        copy_backup(source, backup, staging)
        check_backup_files(staging)
        contents = _load_and_count(staging)
        _compare(source, backup, contents)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return contents


def _compare(source: Path, backup: Backup, contents: _Contents) -> None:
    if backup.counts is not None and contents.counts != backup.counts:
        raise StoreRefused(
            f"the backup in {source} holds {_text(contents.counts)}, but had {_text(backup.counts)} when it was saved: "
            "restore another one"
        )


def _swap(target: Path) -> dict[str, Path]:
    """Replace the old data by the verified data, by renames, and return where the old data are now, by their names.

    The store's data come last, as they went first: a service refuses a data directory without them. Jobs on a shelf of
    the old data must not come into a store that has its own.
    """
    aside: dict[str, Path] = {}
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for name in (APPEND_ONLY_DIR, SHELF_DIR):
        if (target / name).exists():
            aside[name] = target / f"{name}{MOVED_ASIDE}{now}-{os.getpid()}"
            (target / name).rename(aside[name])
            sync_directory(target)
    for name in (SHELF_DIR, APPEND_ONLY_DIR):
        if (target / UNFINISHED_RESTORE / name).exists():
            (target / UNFINISHED_RESTORE / name).rename(target / name)
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
        with contextlib.ExitStack() as locks:
            locks.callback(os.close, lock)
            locks.callback(os.close, _lock_of_shelf(folder))
            yield
    finally:
        folder.release()


def _lock_of_shelf(folder: DataDirectory) -> int:
    """The lock of the shelf's process. Raises StoreRefused if one holds it."""
    lock = folder.try_shelf_lock()
    if lock is None:
        raise StoreRefused(
            f"the process of the shelf (process {folder.shelf_pid()}) that a service left behind still uses the data "
            f"directory {folder.path}: try again when it has ended"
        )
    return lock


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())


def _store(flag: str, name: str, variable: str, about: str) -> Decorator:
    """An option for a store, which may be a path and so have any bytes."""
    return click.option(flag, name, type=click.Path(), envvar=variable, metavar="STORE", help=f"{about} [{variable}]")


@command(
    "deferd copy --from ./deferd-data --to redis://db.example:6379",
    "deferd copy --from redis://a:6379 --to redis+cluster://b:7000,b:7001 --shards 16",
    "DEFERD_COPY_TO=redis://:password@db.example:6379 deferd copy --from ./deferd-data --json",
)
@_store("--from", "source", "DEFERD_COPY_FROM", "a URL, or a data directory")
@_store("--to", "target", "DEFERD_COPY_TO", "an empty store")
@click.option(
    "--shards", type=values.count_from_1, metavar="N", help="of the target; default: as many as the source has"
)
@click.option("--force", is_flag=True, help="do not check whether services run on the stores")
@json_option()
def copy(source: str | None, target: str | None, shards: int | None, force: bool, as_json: bool) -> int:
    """Copy everything that deferd keeps in one store into an empty one: jobs in every state, leases, receipts and
    settings. A store is a URL, as in --redis-url of `deferd serve`, or the data directory of an embedded store. Stop
    the services on both first. Afterwards serve only the target: jobs in both would run twice.
    """

    def work() -> int:
        places = _read_places(source, target)
        return asyncio.run(_copy(*places, shards=shards, force=force, as_json=as_json))

    return _run_to_end(work)


async def _copy(
    source_place: str | Path, target_place: str | Path, *, shards: int | None, force: bool, as_json: bool
) -> int:
    async with contextlib.AsyncExitStack() as opened:
        source = await opened.enter_async_context(_open_store(source_place))
        target = await opened.enter_async_context(_open_store(target_place))
        if isinstance(target_place, Path):
            await _refuse_shelf_with_jobs(target_place)
        shelf = None
        if isinstance(source_place, Path):
            shelf = await opened.enter_async_context(_shelf_of_source(source_place, source))
        report = await copy_store(source, target, shards=shards, force=force, shelf=shelf, on_progress=_Progress().show)
        apart_ms = await clock_ms(target) - await clock_ms(source)
        if warning := clock_warning(apart_ms):
            output.complain(warning)
        names = _name(source, source_place), _name(target, target_place)
    if as_json:
        _show_json(report, apart_ms)
    else:
        show_table(report)
    for key in report.left_out:
        output.complain(f"the key {key} was left out: deferd has no keys of its type or name")
    return conclude(report, *names)


@asynccontextmanager
async def _shelf_of_source(folder: Path, store: Store) -> AsyncIterator[ShelvedJobs | None]:
    layout = await layout_of(store)
    async with _shelf_in(folder, store, 1 if layout is None else layout.shards) as shelf:
        yield shelf


async def _refuse_shelf_with_jobs(folder: Path) -> None:
    """Raise StoreRefused if the target of a copy has jobs on a shelf: they would come into the store."""
    with _shelf_files(folder) as files:
        if files is not None:
            from deferd.shelf.unserved import has_jobs

            if await has_jobs(files):
                raise StoreRefused(
                    f"the data directory {folder} has jobs on a shelf: copy into an empty one, or move {files} away"
                )


@asynccontextmanager
async def _shelf_in(folder: Path, store: Store, shards: int) -> AsyncIterator[ShelvedJobs | None]:
    """The shelf in a data directory on which no service, but this store runs; None without one.

    Raises:
        StoreRefused: it cannot be used.
    """
    with _shelf_files(folder) as files:
        if files is None:
            yield None
            return
        from deferd.shelf.unserved import unserved_shelf

        async with unserved_shelf(files, store, shards) as shelf:
            yield shelf


@contextmanager
def _shelf_files(folder: Path) -> Iterator[Path | None]:
    """The files of the shelf in a data directory, which no process uses during the block; None without a shelf.

    Only in the block may modules be imported that need RocksDB.

    Raises:
        StoreRefused: a process uses them, or there is no RocksDB.
    """
    data_dir = DataDirectory(folder)
    if not data_dir.shelf_dir.exists():
        yield None
        return
    if find_spec("rocksdict") is None:
        raise StoreRefused(
            f"{data_dir.shelf_dir} has jobs, and needs the package rocksdict, which is not available here"
        )
    lock = _lock_of_shelf(data_dir)
    try:
        yield data_dir.shelf_dir
    finally:
        os.close(lock)


def clock_warning(apart_ms: int) -> str | None:
    """The warning if the clock of the target is `apart_ms` ahead of the source's; None for a small difference."""
    if abs(apart_ms) <= _CLOCKS_APART_MS:
        return None
    place, effect = ("ahead of", "earlier") if apart_ms > 0 else ("behind", "later")
    seconds = abs(apart_ms) / 1000
    return f"the clock of the target is {seconds:.1f} s {place} the source's: jobs will be due so much {effect}"


def _read_places(source: str | None, target: str | None) -> tuple[str | Path, str | Path]:
    for text, name in ((source, "from"), (target, "to")):
        if not text:
            variable = f"DEFERD_COPY_{name.upper()}"
            raise UsageError(
                f"--{name} ({variable}) is missing: a store URL, or the data directory of an embedded store"
            )
    assert source and target  # noqa: PT018, S101 (for mypy)
    if source == target:
        raise UsageError("--from and --to are the same store")
    return _read_place("--from", source, must_exist=True), _read_place("--to", target, must_exist=False)


def _name(store: Store, place: str | Path) -> str:
    """The name of a store in messages, without a password."""
    return str(place) if isinstance(place, Path) else store.description


def conclude(report: CopyReport, source: str, target: str) -> int:
    """Report the result and return the exit code."""
    if report.adds_up:
        jobs = sum(report.before.totals().values())
        output.hint(
            f"{jobs:,} jobs copied. Serve {target} with --shards {report.shards}, and {source} no longer: jobs in both "
            "would run twice"
        )
        return exit_codes.DONE
    if report.source_changed:
        output.complain(
            f"the store at {source} changed while it was copied: stop the services that use it, and run this again"
        )
    else:
        wrong = [
            f"{name}: {report.target.elements.get(name, 0)} instead of {report.before.elements.get(name, 0)}"
            for name in sorted({*report.before.elements, *report.target.elements})
            if report.target.elements.get(name, 0) != report.before.elements.get(name, 0)
        ]
        output.complain(
            f"the store at {target} does not hold what {source} holds ({'; '.join(wrong) or 'jobs are missing'}): run "
            "this again"
        )
    return exit_codes.FAILED


def _show_json(report: CopyReport, apart_ms: int) -> None:
    for topic in _topics(report):
        counts = [_counts(inventory, topic) for inventory in (report.before, report.target)]
        output.json_line({"topic": topic, "from": counts[0], "to": counts[1], "adds_up": counts[0] == counts[1]})
    output.json_line(
        {
            "topics": len(report.before.jobs),
            "from": report.before.totals(),
            "to": report.target.totals(),
            "shards": report.shards,
            "source_changed": report.source_changed,
            "clocks_apart_ms": apart_ms,
            "left_out": report.left_out,
            "adds_up": report.adds_up,
        }
    )


def show_table(report: CopyReport) -> None:
    """Print the jobs by topic and state, and which of them were not copied."""
    columns = [Column("TOPIC"), *(Column(state.upper(), right=True) for state in JobState), Column("COPIED")]
    rows: list[list[str]] = []
    not_shown = 0
    for topic in _topics(report):
        before, now = (_counts(inventory, topic) for inventory in (report.before, report.target))
        if before == now and len(rows) >= _SHOWN_TOPICS:
            not_shown += 1
            continue
        rows.append([topic, *_cells(before, now), "all" if before == now else "NOT ALL"])
    totals = report.before.totals(), report.target.totals()
    rows.append(["(all topics)", *_cells(*totals), "all" if report.adds_up else "NOT ALL"])
    output.show_table(columns, rows)
    if not_shown:
        output.line(f"and {not_shown:,} more topics, all of whose jobs were copied (--json lists them)")


def _topics(report: CopyReport) -> list[str]:
    return sorted({*report.before.jobs, *report.target.jobs})


def _counts(inventory: Inventory, topic: str) -> dict[str, int]:
    of_topic = inventory.jobs.get(topic, {})
    return {state.value: of_topic.get(state, 0) for state in JobState}


def _cells(before: dict[JobState, int] | dict[str, int], now: dict[JobState, int] | dict[str, int]) -> list[str]:
    return [
        f"{was:,}" if was == copied else f"{copied:,} of {was:,}"
        for was, copied in zip(before.values(), now.values(), strict=True)
    ]


class _Progress:
    """A line on a terminal every few seconds."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _REPORT_EVERY_S

    def show(self, copied: int, total: int) -> None:
        """Report that `copied` of the elements of all keys are copied."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _REPORT_EVERY_S
            output.hint(f"copied {copied:,} of {total:,} entries")


def _run_to_end(work: Callable[[], int]) -> int:
    """Do a command's work and return its exit code. SIGTERM and SIGHUP end it cleanly, as Ctrl-C does."""
    handlers = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return work()
    except StoreRefused as exc:
        complain(str(exc))
    except OSError as exc:
        complain(f"{exc.filename or 'a file'} cannot be read or written: {exc.strerror or exc}")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return exit_codes.FAILED


@asynccontextmanager
async def _embedded_store(folder: Path) -> AsyncIterator[Store]:
    """Run an embedded store on a data directory that nobody uses.

    Raises:
        StoreRefused: a service uses the directory, or the store does not start.
    """
    embedded = EmbeddedStore(folder)
    embedded.claim()
    try:
        await embedded.start()
        store = await connect(embedded.url, timeout_s=_CALL_TIMEOUT_S)
        store.fault = embedded.fault
        try:
            yield store
        finally:
            await store.close()
    finally:
        await embedded.stop()


def _read_place(flag: str, text: str, *, must_exist: bool) -> str | Path:
    """A store as named on the command line: a URL, or the data directory of an embedded store.

    Raises:
        UsageError: it is neither.
        StoreRefused: it is a directory without data, and `must_exist`.
    """
    if "://" in text:
        try:
            parse_store_url(text)
        except StoreUrlError as exc:
            wanted = f"{exc}, or a data directory"
            raise UsageError(f"{flag} has a value that is not shown, but must be {wanted}") from None
        return text
    if _HOST_AND_PORT.fullmatch(text):
        raise UsageError(f"{flag} is {text!r}, but must be a store URL, such as redis://{text}, or a data directory")
    directory = Path(text).expanduser()
    if must_exist and not has_data(directory):
        raise StoreRefused(f"the data directory {directory} ({flag}) has no data of an embedded store")
    return directory


@asynccontextmanager
async def _open_store(place: str | Path) -> AsyncIterator[Store]:
    """The store at a URL, or an embedded one on a data directory.

    Raises:
        StoreRefused: as `_embedded_store`.
    """
    if isinstance(place, Path):
        async with _embedded_store(place) as store:
            yield store
        return
    store = await connect(place, timeout_s=_CALL_TIMEOUT_S)
    try:
        yield store
    finally:
        await store.close()


class _Contents(NamedTuple):
    """What a data directory holds. `shards` is None if no service ever used it; `counts` are jobs by state."""

    shards: int | None
    counts: dict[str, int]
    topics: int
    store: str


def _load_and_count(folder: Path) -> _Contents:
    """Load the data of a directory into a temporary store, and count its jobs.

    Raises:
        StoreRefused: it cannot be loaded.
    """
    return asyncio.run(_contents(folder))


async def _contents(folder: Path) -> _Contents:
    async with _embedded_store(folder) as store:
        try:
            layout = await layout_of(store)
            shards = None if layout is None else layout.shards
            async with _shelf_in(folder, store, shards or 1) as shelf:
                shelved = {} if shelf is None else shelf.counts()
            check_shelved(shelved, await count_shelved(store, shards or 1))
            jobs = await count_jobs(store, shards or 1)
            server = await store.client.info("server")
        except StoreUnavailable as exc:
            raise StoreRefused(f"the store on {folder} failed: {exc}") from exc
        counts = {state.value: sum(of_topic.get(state, 0) for of_topic in jobs.values()) for state in JobState}
        return _Contents(shards, counts, len(jobs), server_name(server))
