"""`deferd bench`, whose options are made from `deferd.bench.options.Options`."""

from __future__ import annotations

import os

import click

from deferd.bench.options import Options, default_text
from deferd.cli.command import Command
from deferd.cli.connection import SETTINGS
from deferd.cli.options import json_option

_EPILOG = """examples:
  deferd bench
  deferd bench --url http://deferd.example:8000 --processes 4
  deferd bench --only single --connections 256 --seconds 20
  deferd bench --only lateness --rate 2000 --seconds 30 --histogram
  deferd bench --only batch --jobs 200000 --batch 1000 --json > figures.json

exit codes: 0 measured; 1 the service was unreachable, failed, or responded wrongly; 2 wrong usage;
130 Ctrl-C"""
_METAVARS = {"seconds": "SECONDS", "timeout": "SECONDS", "only": "LOAD", "url": "URL"}


def _bench_options() -> list[click.Parameter]:
    options: list[click.Parameter] = []
    for name, field in Options.model_fields.items():
        default = "" if field.default is None else f" Default: {default_text(field.default)}."
        about = f"{field.description}{default}"
        options.append(click.Option([f"--{name}"], metavar=_METAVARS.get(name, "N"), help=about))
    return options


@click.command(cls=Command, params=_bench_options(), epilog=_EPILOG)
@click.option("--histogram", is_flag=True, help="Draw a histogram of the lateness.")
@json_option("Print one JSON object and nothing else on stdout.")
def bench(histogram: bool, as_json: bool, **options: str | None) -> int:
    """Measure a running deployment over HTTP and check every response. Three loads run one after the other:

    \b
      single    single-job calls: each connection sends its next call when the
                last one has its response. First puts alone, then the full
                cycle put, pop, finish, which is three calls.
      batch     batches by the official client, 4 at a time from each process:
                all jobs are put, due at one instant, made ready by the timer,
                popped and finished.
      lateness  jobs due at random instants, at a given rate: from the instant
                a job is due until a waiting consumer has it.

    Each put must get 201, each job must be delivered exactly once and not before it is due, and the counts must add up.
    The jobs go to new topics, bench-<random>.*, which are removed at the end, also after an error or Ctrl-C.

    The load is generated in Python: one process can send a few thousand single calls per second, even if the service
    could handle more. `busy` is the share of a core that this process used; near 100 % the load generator was the
    limit, not the service. Then add --processes. On the service's own machine both compete for cores, so the figures
    are lower there than from another machine.
    """
    from deferd.bench import command

    given = {name: value for name, value in options.items() if value is not None}
    if url := os.environ.get(SETTINGS["url"].variable):  # as for the other commands; of several replicas the first
        given.setdefault("url", url.partition(",")[0])
    return command.run(given, as_json=as_json, histogram=histogram)
