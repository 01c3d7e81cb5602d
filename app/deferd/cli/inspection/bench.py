"""`deferd bench` and `deferd bench plan`; their options are made from the models `Options` and `PlanOptions`."""

from __future__ import annotations

import os

import click
from pydantic import BaseModel

from deferd.bench.options import Options, default_text
from deferd.bench.plan import PlanOptions
from deferd.cli.framework import exit_codes
from deferd.cli.framework.command import Command, CommandGroup
from deferd.cli.framework.options import SETTINGS, json_option

_EPILOG = """examples:
  deferd bench
  deferd bench --url http://deferd.example:8000 --processes 4
  deferd bench --only single --connections 256 --seconds 20
  deferd bench --only lateness --rate 2000 --seconds 30 --histogram
  deferd bench --only batch --jobs 200000 --batch 1000 --json > figures.json
  deferd bench plan --jobs 10000000 --due 10000

`deferd bench plan --help` shows the options of a plan.

exit codes: 0 measured; 1 the service was unreachable, failed, or responded wrongly; 2 wrong usage;
130 Ctrl-C"""
_PLAN_EPILOG = """examples:
  deferd bench plan --jobs 100000000 --due 10000 --bodies 500
  deferd bench plan --jobs 1000000 --due 200 --calls single --durability replicated:1
  deferd bench plan --jobs 0 --due 5000 --retention 86400 --machine-memory 32 --json

exit codes: 0 planned; 2 wrong usage"""
_METAVARS = {
    "seconds": "SECONDS",
    "timeout": "SECONDS",
    "only": "LOAD",
    "url": "URL",
    "due": "RATE",
    "bodies": "BYTES",
    "ids": "BYTES",
    "durability": "LEVEL",
    "retention": "SECONDS",
    "calls": "KIND",
    "busy": "SHARE",
    "primary_memory": "GB",
    "machine_memory": "GB",
}


class BenchGroup(CommandGroup):
    """`deferd bench` measures by itself, and has the command `plan`."""

    def invoke(self, ctx: click.Context) -> int:
        """The exit code of the command."""
        return super().invoke(ctx) or exit_codes.DONE


def _options_of(model: type[BaseModel]) -> list[click.Parameter]:
    options: list[click.Parameter] = []
    for name, field in model.model_fields.items():
        default = "" if field.default is None else f" Default: {default_text(field.default)}."
        about = f"{field.description}{default}"
        options.append(click.Option([f"--{name.replace('_', '-')}"], metavar=_METAVARS.get(name, "N"), help=about))
    return options


@click.group(
    cls=BenchGroup,
    params=_options_of(Options),
    epilog=_EPILOG,
    invoke_without_command=True,
    subcommand_metavar="[plan ...]",
)
@click.option("--histogram", is_flag=True, help="Draw a histogram of the lateness.")
@json_option("Print one JSON object and nothing else on stdout.")
@click.pass_context
def bench(ctx: click.Context, /, histogram: bool, as_json: bool, **options: str | None) -> int | None:
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
    if ctx.invoked_subcommand is not None:
        if given or histogram or as_json:
            raise click.UsageError("the options of a plan go after the word plan", ctx)
        return None
    if url := os.environ.get(SETTINGS["url"].variable):  # as for the other commands; of several replicas the first
        given.setdefault("url", url.partition(",")[0])
    return command.run(given, as_json=as_json, histogram=histogram)


@bench.command(cls=Command, params=_options_of(PlanOptions), epilog=_PLAN_EPILOG)
@json_option("Print one JSON object and nothing else on stdout.")
def plan(as_json: bool, **options: str | None) -> int:
    """Compute how many machines a load needs, from the measured costs of a job. It measures nothing and needs no
    service: the costs are in docs/scale.md, each with the command that measured it.
    """
    from deferd.bench import plan_report

    return plan_report.run({name: value for name, value in options.items() if value is not None}, as_json=as_json)
