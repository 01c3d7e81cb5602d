"""The options of `deferd bench`, each declared once: help and error text derive from the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from deferd.contract.flag_fields import accepted_numbers, flag, number, plain, quoted, whole_number
from deferd.contract.limits import BATCH_MAX
from deferd.contract.service_url import parse_service_url

_LATENESS_JOBS_MAX = 1_000_000
LoadName = Literal["single", "batch", "lateness"]
Fields = TypeVar("Fields", bound=BaseModel)


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


def read_options(flags: Mapping[str, Any]) -> Options:
    """The options from these flags (field name to text, only those given), then the defaults.

    Raises:
        OptionsError: a value has the wrong type, is out of range, or contradicts another one.
    """
    options = validated(Options, flags, {"only": "single, batch or lateness"})
    if problems := _contradictions(options):
        raise OptionsError(problems)
    return options


def validated(model: type[Fields], flags: Mapping[str, Any], choices: Mapping[str, str]) -> Fields:
    """The fields of `model` from these flags; `choices` are what the fields accept that are no numbers.

    Raises:
        OptionsError: a value has the wrong type or is out of range.
    """
    try:
        return model(**flags)
    except ValidationError as exc:
        errors = {str(error["loc"][0]): error for error in exc.errors(include_url=False)}
        raise OptionsError(
            [
                f"{flag(name)} {error['ctx']['error']}"
                if error["type"] == "value_error"
                else _problem(model, name, flags.get(name, error["input"]), choices)
                for name, error in errors.items()
            ]
        ) from None


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


def _problem(model: type[BaseModel], name: str, value: object, choices: Mapping[str, str]) -> str:
    wanted = accepted_numbers(model.model_fields[name]) or choices[name]
    return f"{flag(name)} is {quoted(value)}, but must be {wanted}"


def default_text(default: object) -> str:
    """A default as one would write it."""
    return plain(default) if isinstance(default, int | float) else str(default)
