"""`deferd bench plan`, from its options to its exit code: the plan as JSON, or as tables and notes for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from deferd.bench.costs import CALLS_BATCH, CALLS_SINGLE
from deferd.bench.options import OptionsError
from deferd.bench.plan import Plan, PlanOptions, plan, read_plan_options
from deferd.contract.flag_fields import plain

_UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_ONE_SERVER = 1
_DONE, _USAGE = 0, 2
_ARITHMETIC = (
    "This is arithmetic with the cost of a job as measured on one small machine, beside ten million stored jobs: see "
    "docs/scale.md. Measure your own machines with `deferd bench`."
)
_TOPIC = "One topic lives on one primary: the load must be spread over at least as many topics as there are primaries."
_FSYNC = "An fsync covers the script calls that arrived together, so there are at most as many fsyncs as script calls."


def run(flags: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the plan for these flags (field name to text). 0: done. 2: the value of a flag is invalid."""
    try:
        options = read_plan_options(flags)
    except OptionsError as error:
        for problem in error.problems:
            print(f"deferd: {problem}", file=sys.stderr)  # noqa: T201 (the command's own words)
        return _USAGE
    made = plan(options)
    if as_json:
        print(json.dumps({"load": options.model_dump(), "plan": made.as_json()}))  # noqa: T201 (the command's output)
    else:
        _show(options, made)
    return _DONE


def _show(options: PlanOptions, made: Plan) -> None:
    """Print it on standard output, as wide as its terminal."""
    console = Console(highlight=False)
    retained = f", finished ones kept for {plain(options.retention)} s" if options.retention else ""
    console.print(
        f"{options.jobs:,} stored jobs, {plain(options.due)} due per second{retained}; ids of {options.ids} bytes, "
        f"bodies of {options.bodies:,}; durability {options.durability}; {options.calls} calls\n",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("", "in all", "each"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for row in _rows(options, made):
        table.add_row(*row)
    console.print(table, "")
    for note in _notes(options, made):
        console.print(note, soft_wrap=True)


def _rows(options: PlanOptions, made: Plan) -> list[tuple[str, str, str]]:
    """Name, value of all, value of one."""
    copies = made.primaries + made.replicas
    return [
        ("machines", f"{made.machines:,}", f"{options.machine_cores} cores, {plain(options.machine_memory)} GB"),
        ("store primaries", f"{made.primaries:,}", f"{made.stored // made.primaries:,} jobs"),
        ("store replicas", f"{made.replicas:,}", ""),
        ("service processes", f"{made.service_processes:,}", f"at {options.busy:.0%} of a core"),
        ("memory of a job", "", size(made.job_bytes)),
        ("memory of the stores", size(made.memory_bytes), size(made.memory_bytes / copies)),
        (
            "  of which reserved for rewrites",
            size(copies * made.rewrite_reserve_bytes),
            size(made.rewrite_reserve_bytes),
        ),
        ("disk, at most", size(made.disk_bytes), size(made.disk_bytes / copies)),
        ("append-only file, written", rate(made.file_bytes_per_s), rate(made.file_bytes_per_s / made.primaries)),
        ("CPU of the store", f"{made.store_cores:.2f} cores", f"{made.store_cores / made.primaries:.2f} cores"),
        (
            "CPU of the service",
            f"{made.service_cores:.2f} cores",
            f"{made.service_cores / made.service_processes:.2f} cores",
        ),
        (
            "network, clients to service",
            rate(made.http_bytes_per_s),
            rate(made.http_bytes_per_s / made.service_processes),
        ),
        ("network, service to store", rate(made.store_bytes_per_s), rate(made.store_bytes_per_s / made.primaries)),
        (
            "network, replication",
            rate(made.replication_bytes_per_s),
            rate(made.replication_bytes_per_s / made.primaries),
        ),
        ("script calls", f"{made.calls_per_s:,.0f}/s", f"{made.calls_per_s / made.primaries:,.0f}/s"),
        ("restart until ready, after a rewrite", "", seconds(made.restart_s)),
        ("restart until ready, just before one", "", seconds(made.restart_most_s)),
        ("rewrite of the file", "", seconds(made.rewrite_s)),
    ]


def _notes(options: PlanOptions, made: Plan) -> list[str]:
    """Notes on this plan."""
    found = [_ARITHMETIC]
    if made.primaries > _ONE_SERVER:
        found.append(f"The number of primaries is set by {made.limited_by}. {_TOPIC}")
    if options.durability != "memory":
        found.append(_FSYNC)
    if options.calls == "single":
        share = CALLS_SINGLE / CALLS_BATCH
        found.append(f"In batches of 500 there would be a {share:.0f}th of the script calls.")
    return found


def size(count: float) -> str:
    """Bytes with three digits: 2.01 GB."""
    for unit, name in _UNITS:
        if count >= 0.9995 * unit:  # so that rounding gives no 1000 of the smaller unit
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


def rate(count: float) -> str:
    """Bytes per second."""
    return f"{size(count)}/s"


def seconds(count: float) -> str:
    """A duration: 31 s, 12 min."""
    return f"{count:.0f} s" if count < 120 else f"{count / 60:.0f} min"
