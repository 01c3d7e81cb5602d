"""The options of `deferd bench`. Each is declared once: option, help and error text are made from the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from deferd.contract.limits import BATCH_MAX
from deferd.contract.service_url import parse_service_url

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


def default_text(default: object) -> str:
    """A default as one would write it."""
    return _plain(default) if isinstance(default, int | float) else str(default)
