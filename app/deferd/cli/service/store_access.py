"""Opens the stores for `backup`, `restore` and `copy`, and ends these commands."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

from deferd.cli.framework import exit_codes
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.output import complain
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.store_copy import shards_of
from deferd.engine.store_inventory import count_jobs
from deferd.settings import default_text, flag, variable
from deferd.store.append_only import has_data
from deferd.store.connection import Store, connect
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused
from deferd.store.server_info import server_name
from deferd.store.url import StoreUrlError, parse_store_url

CALL_TIMEOUT_S = 60.0
"""A call takes some milliseconds, but more when the store syncs a few MiB to a slow disk."""
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+")
data_dir_option: Final = click.option(
    flag("data_dir"),
    type=click.Path(path_type=Path),
    envvar=variable("data_dir"),
    default=default_text("data_dir"),
    metavar="DIR",
    help=f"the data directory of the service; default {default_text('data_dir')} [{variable('data_dir')}]",
)


def run_to_end(work: Callable[[], int]) -> int:
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
async def embedded_store(folder: Path) -> AsyncIterator[Store]:
    """Run an embedded store on a data directory that nobody uses.

    Raises:
        StoreRefused: a service uses the directory, or the store does not start.
    """
    embedded = EmbeddedStore(folder)
    embedded.claim()
    try:
        await embedded.start()
        store = await connect(embedded.url, timeout_s=CALL_TIMEOUT_S)
        store.fault = embedded.fault
        try:
            yield store
        finally:
            await store.close()
    finally:
        await embedded.stop()


def read_place(flag: str, text: str, *, must_exist: bool) -> str | Path:
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
async def open_store(place: str | Path) -> AsyncIterator[Store]:
    """The store at a URL, or an embedded one on a data directory.

    Raises:
        StoreRefused: as `embedded_store`.
    """
    if isinstance(place, Path):
        async with embedded_store(place) as store:
            yield store
        return
    store = await connect(place, timeout_s=CALL_TIMEOUT_S)
    try:
        yield store
    finally:
        await store.close()


class Contents(NamedTuple):
    """What a data directory holds. `shards` is None if no service ever used it; `counts` are jobs by state."""

    shards: int | None
    counts: dict[str, int]
    topics: int
    store: str


def load_and_count(folder: Path) -> Contents:
    """Load the data of a directory into a temporary store, and count its jobs.

    Raises:
        StoreRefused: it cannot be loaded.
    """
    return asyncio.run(_load_and_count(folder))


async def _load_and_count(folder: Path) -> Contents:
    async with embedded_store(folder) as store:
        try:
            shards = await shards_of(store)
            jobs = await count_jobs(store, shards or 1)
            server = await store.client.info("server")
        except StoreUnavailable as exc:
            raise StoreRefused(f"the store on {folder} failed: {exc}") from exc
        counts = {state.value: sum(of_topic.get(state, 0) for of_topic in jobs.values()) for state in JobState}
        return Contents(shards, counts, len(jobs), server_name(server))
