"""`deferd copy`: copies everything from one store to another, and compares the counts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import Decorator, json_option
from deferd.cli.framework.output import Column
from deferd.cli.service.store_access import open_store, read_place, run_to_end
from deferd.contract.model import JobState
from deferd.engine.store_copy import CopyReport, clock_ms, copy_store
from deferd.engine.store_inventory import Inventory
from deferd.store.connection import Store

_SHOWN_TOPICS = 40
"""Most topics with equal counts in the table."""
_CLOCKS_APART_MS = 1000
_REPORT_EVERY_S = 5.0


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
    if not as_json:
        import rich  # noqa: F401 (for the tables: fail before the work if it is missing)

    def work() -> int:
        places = _read_places(source, target)
        return asyncio.run(_copy(*places, shards=shards, force=force, as_json=as_json))

    return run_to_end(work)


async def _copy(
    source_place: str | Path, target_place: str | Path, *, shards: int | None, force: bool, as_json: bool
) -> int:
    async with open_store(source_place) as source, open_store(target_place) as target:
        report = await copy_store(source, target, shards=shards, force=force, on_progress=_Progress().show)
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
    return read_place("--from", source, must_exist=True), read_place("--to", target, must_exist=False)


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
