"""The flags of `deferd bench`, each declared once: help and error text derive from the field."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from deferd.contract.flag_fields import accepted_numbers, flag, number, plain, quoted, whole_number
from deferd.contract.limits import BATCH_MAX
from deferd.contract.service_url import parse_service_url

DESCRIPTION = """\
Measure a running deployment over HTTP and check every response. Three loads run one after the other:

  single    single-job calls: each connection sends its next call when the last one has its response. First puts
            alone, then the full cycle put, pop, finish, which is three calls.
  batch     batches by the official client, 4 at a time from each process: all jobs are put, due at one instant, made
            ready by the timer, popped and finished.
  lateness  jobs due at random instants, at a given rate: from the instant a job is due until a waiting consumer has
            it.

Each put must get 201, each job must be delivered exactly once and not before it is due, and the counts must add up.
The jobs go to new topics, bench-<random>.*, which are removed at the end, also after an error or Ctrl-C.

The load is generated in Python: one process can send a few thousand single calls per second, whatever the service
could handle. `busy` is the share of a core that this process used; near 100 % the load generator set the pace, not the
service. Then add --processes. On the service's own machine both compete for cores, so the figures are lower there than
from another machine.
"""
EXAMPLES = """\
examples:
  deferd bench
  deferd bench --url http://deferd.example:8000 --processes 4
  deferd bench --only single --connections 256 --seconds 20
  deferd bench --only lateness --rate 2000 --seconds 30 --histogram
  deferd bench --only batch --jobs 200000 --batch 1000 --json > figures.json

exit codes: 0 measured; 1 the service was unreachable, failed, or responded wrongly; 2 wrong usage; 130 Ctrl-C
"""
_LATENESS_JOBS_MAX = 1_000_000
LoadName = Literal["single", "batch", "lateness"]


class Options(BaseModel):
    """What to measure, and how. Durations are in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, AfterValidator(parse_service_url)] = Field(
        "http://127.0.0.1:8000", description="URL of the deployment, http:// or https://."
    )
    only: LoadName | None = Field(None, description="Run only this load: single, batch or lateness.")
    seconds: float = number(5.0, 0.5, 600, "Duration of each measurement of single calls and of lateness, in seconds")
    connections: int = whole_number(64, 1, 1000, "single: connections, each with one call in flight")
    jobs: int = whole_number(20_000, 1, 1_000_000, "batch: jobs")
    batch: int = whole_number(500, 1, BATCH_MAX, "batch: jobs per call; lateness: most jobs per pop")
    rate: int = whole_number(1000, 1, 100_000, "lateness: jobs due per second")
    consumers: int = whole_number(8, 1, 1000, "lateness: waiting consumers")
    processes: int = whole_number(1, 1, 64, "Load-generating processes, which share connections, jobs and consumers")
    timeout: float = number(60.0, 1, 3600, "Seconds by which a part of a load may exceed its planned time")

    @property
    def loads(self) -> tuple[LoadName, ...]:
        """The loads to run, in order."""
        return get_args(LoadName) if self.only is None else (self.only,)

    @property
    def lateness_jobs(self) -> int:
        """Number of jobs of the load `lateness`."""
        return max(round(self.rate * self.seconds), 1)


class OptionsError(Exception):
    """One or more flags are invalid; each of `problems` is a sentence that names flag, value and range."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option, whose value stays text for `read_options`, and the output flags."""
    for name, field in Options.model_fields.items():
        default = "" if field.default is None else f" Default: {_shown(field.default)}."
        parser.add_argument(
            flag(name),
            dest=name,
            metavar={"seconds": "SECONDS", "timeout": "SECONDS", "only": "LOAD", "url": "URL"}.get(name, "N"),
            help=f"{field.description}{default}".replace("%", "%%"),
            default=argparse.SUPPRESS,
        )
    parser.add_argument("--histogram", action="store_true", help="Draw a histogram of the lateness.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object and nothing else on stdout.")


def read_options(flags: Mapping[str, Any]) -> Options:
    """The options from these flags (field name to text, only those given), then the defaults.

    Raises:
        OptionsError: a value has the wrong type, is out of range, or contradicts another one.
    """
    try:
        options = Options(**flags)
    except ValidationError as exc:
        errors = {str(error["loc"][0]): error for error in exc.errors(include_url=False)}
        raise OptionsError(
            [
                f"{flag(name)} {error['ctx']['error']}"
                if error["type"] == "value_error"
                else _problem(name, flags.get(name, error["input"]))
                for name, error in errors.items()
            ]
        ) from None
    if problems := _contradictions(options):
        raise OptionsError(problems)
    return options


def _contradictions(options: Options) -> list[str]:
    problems = []
    for load, name in (("single", "connections"), ("lateness", "consumers")):
        value: int = getattr(options, name)
        if load in options.loads and value < options.processes:
            problems.append(
                f"{flag(name)} is {value}, but must be at least --processes ({options.processes}): each needs one"
            )
    if "lateness" in options.loads and options.lateness_jobs > _LATENESS_JOBS_MAX:
        problems.append(
            f"--rate is {options.rate} and --seconds {plain(options.seconds)}: {options.lateness_jobs} jobs, but there "
            f"must be at most {_LATENESS_JOBS_MAX}"
        )
    return problems


def _problem(name: str, value: object) -> str:
    wanted = accepted_numbers(Options.model_fields[name]) or "single, batch or lateness"
    return f"{flag(name)} is {quoted(value)}, but must be {wanted}"


def _shown(default: object) -> str:
    return plain(default) if isinstance(default, int | float) else str(default)
