"""The flags of `deferd bench`. Each is declared once: flag, help and error text are made from the field."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from deferd.contract.limits import BATCH_MAX
from deferd.contract.service_url import parse_service_url

DESCRIPTION = """\
Measure a running deployment through its HTTP port, and check every answer. Three loads, one after the other:

  single    single-job calls: each connection sends its next call when the last one is answered. First puts alone,
            then the full cycle put, pop, finish, which is three calls.
  batch     batches by the official client, 4 at a time from each process: all jobs are put, due at one instant, made
            ready by the timer, popped and finished.
  lateness  jobs due at random instants, at a given rate: from the instant a job is due until it is in the hands of a
            waiting consumer.

Each job must be answered 201, come exactly once, not before it is due, and the counts must add up. The jobs go to
topics of their own, bench-<random>.*, which are removed at the end, also after a failure or Ctrl-C.

The load is made in Python: one process can send some thousands of single calls a second, whatever the service could
take. `busy` is the share of a core that this process used; near 100 % it was the load generator that set the pace, and
not the service. Then add --processes. On the service's own machine the two take cores away from each other, so the
figures are lower there than from another machine.
"""
EXAMPLES = """\
examples:
  deferd bench
  deferd bench --url http://deferd.example:8000 --processes 4
  deferd bench --only single --connections 256 --seconds 20
  deferd bench --only lateness --rate 2000 --seconds 30 --histogram
  deferd bench --only batch --jobs 200000 --batch 1000 --json > figures.json

exit codes: 0 measured; 1 the service could not be reached, failed, or answered wrongly; 2 wrong usage; 130 Ctrl-C
"""
_LATENESS_JOBS_MAX = 1_000_000
LoadName = Literal["single", "batch", "lateness"]


def _number(default: float, low: float, high: float, text: str) -> Any:
    return Field(default, ge=low, le=high, allow_inf_nan=False, description=f"{text}, {_plain(low)} to {_plain(high)}.")


def _whole(default: int, low: int, high: int, text: str) -> Any:
    return Field(default, ge=low, le=high, description=f"{text}, {_plain(low)} to {_plain(high)}.")


def _plain(number: float) -> str:
    return f"{number:,.0f}".replace(",", "") if float(number).is_integer() else str(number)


class Options(BaseModel):
    """What to measure, and how. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, AfterValidator(parse_service_url)] = Field(
        "http://127.0.0.1:8000", description="Where the deployment listens: http:// or https://."
    )
    only: LoadName | None = Field(None, description="Run one load alone: single, batch or lateness.")
    seconds: float = _number(5.0, 0.5, 600, "Length of each measurement of single calls and of lateness, in seconds")
    connections: int = _whole(64, 1, 1000, "single: connections, each with one call under way")
    jobs: int = _whole(20_000, 1, 1_000_000, "batch: jobs")
    batch: int = _whole(500, 1, BATCH_MAX, "batch: jobs in a call; lateness: most jobs a consumer asks for")
    rate: int = _whole(1000, 1, 100_000, "lateness: jobs due a second")
    consumers: int = _whole(8, 1, 1000, "lateness: waiting consumers")
    processes: int = _whole(1, 1, 64, "Load-generating processes; connections, jobs and consumers are spread over them")
    timeout: float = _number(60.0, 1, 3600, "Time by which a part of a load may take longer than planned, in seconds")

    @property
    def loads(self) -> tuple[LoadName, ...]:
        """The loads to run, in order."""
        return get_args(LoadName) if self.only is None else (self.only,)

    @property
    def lateness_jobs(self) -> int:
        """Jobs of the load `lateness`."""
        return max(round(self.rate * self.seconds), 1)


class OptionsError(Exception):
    """One or more flags have wrong values; each of `problems` is a sentence that names flag, value and range."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give the parser a flag for each option, whose values stay text for `read_options`, and those of the output."""
    for name, field in Options.model_fields.items():
        default = "" if field.default is None else f" Default: {_shown(field.default)}."
        parser.add_argument(
            _flag(name),
            dest=name,
            metavar={"seconds": "SECONDS", "timeout": "SECONDS", "only": "LOAD", "url": "URL"}.get(name, "N"),
            help=f"{field.description}{default}".replace("%", "%%"),
            default=argparse.SUPPRESS,
        )
    parser.add_argument("--histogram", action="store_true", help="Draw how late the jobs were.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object, and nothing else, on stdout.")


def read_options(given: Mapping[str, Any]) -> Options:
    """The options of these flags (field name to text, only those given), else the defaults.

    Raises:
        OptionsError: a value is of the wrong kind, outside its range, or does not go with another one.
    """
    try:
        options = Options(**given)
    except ValidationError as exc:
        faults = {str(fault["loc"][0]): fault for fault in exc.errors(include_url=False)}
        raise OptionsError(
            [
                f"{_flag(name)} {fault['ctx']['error']}"
                if fault["type"] == "value_error"
                else _problem(name, given.get(name, fault["input"]))
                for name, fault in faults.items()
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
                f"{_flag(name)} is {value}, but must be at least --processes ({options.processes}): each needs one"
            )
    if "lateness" in options.loads and options.lateness_jobs > _LATENESS_JOBS_MAX:
        problems.append(
            f"--rate is {options.rate} and --seconds {_plain(options.seconds)}: {options.lateness_jobs} jobs, but "
            f"there must be at most {_LATENESS_JOBS_MAX}"
        )
    return problems


def _problem(name: str, value: object) -> str:
    field = Options.model_fields[name]
    low = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    high = next((bound.le for bound in field.metadata if hasattr(bound, "le")), None)
    if low is not None and high is not None:
        kind = "a whole number" if field.annotation is int else "a number"
        wanted = f"{kind} from {_plain(low)} to {_plain(high)}"
    else:
        wanted = {"only": "single, batch or lateness"}[name]
    return f"{_flag(name)} is {str(value)[:100]!r}, but must be {wanted}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(default: object) -> str:
    return _plain(default) if isinstance(default, int | float) else str(default)
