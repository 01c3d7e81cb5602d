"""The options that several commands have: of the connection to the service, of jobs and of topics."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from deferd.cli.framework import values
from deferd.cli.framework.command import Command, ConnectionOption, command, refuse_undecoded
from deferd.contract.fields import POLICY, TOPIC, Field, Kind
from deferd.contract.limits import REPLICAS_MAX

_TIME_LIMIT_S: Final = 1.0
_SCHEDULES_MAX: Final = 1000


class ConnectionSetting(NamedTuple):
    """A setting of the commands that call a service. `default` is a text, as a person writes it; `read` parses it."""

    flag: str
    variable: str
    default: str | None
    read: Callable[[str], Any]
    about: str
    metavar: str
    secret: bool = False

    def option(self, name: str, *, as_text: bool = False) -> Callable[[Any], Any]:
        """The click option; with `as_text` its value is not read."""
        default = f"; default {self.default}" if self.default else ""
        return click.option(
            self.flag,
            name,
            cls=ConnectionOption,
            envvar=self.variable,
            default=self.default,
            type=str if as_text else self.read,
            metavar=self.metavar,
            help=f"{self.about}{default} [{self.variable}]",
        )


SETTINGS: Final = {
    "url": ConnectionSetting(
        "--url",
        "DEFERD_URL",
        "http://127.0.0.1:8000",
        values.service_urls,
        "URL of the service, or of several replicas with commas between them: the next one is tried when one is down",
        "URL",
    ),
    "key": ConnectionSetting(
        "--key",
        "DEFERD_KEY",
        None,
        values.key,
        "bearer key; better set the variable, which other users of this machine do not see",
        "KEY",
        secret=True,
    ),
    "ca_file": ConnectionSetting(
        "--ca-file",
        "DEFERD_CA_FILE",
        None,
        values.ca_file,
        "PEM file with certificate authorities that may sign the service's certificate, beside those of the system",
        "FILE",
    ),
    "timeout": ConnectionSetting(
        "--timeout",
        "DEFERD_TIMEOUT",
        "10s",
        values.timeout,
        "longest wait for a response, beyond the --wait of a pop; 0.1s to 1h",
        "DURATION",
    ),
    "retry_for": ConnectionSetting(
        "--retry-for",
        "DEFERD_RETRY_FOR",
        "5s",
        values.retry_time,
        "how long to retry when the service is unreachable or busy, where a retry is safe; 0 to 24h",
        "DURATION",
    ),
    "cipher": ConnectionSetting(
        "--cipher-keys",
        "DEFERD_CIPHER_KEYS",
        None,
        values.cipher,
        "file with keys of `deferd cipher`: bodies and results are decrypted when read, and encrypted when put",
        "FILE",
    ),
}
"""By the name of the argument."""


@dataclass(frozen=True)
class Connection:
    """The settings of a client. Durations are seconds. `explicit` names the fields that are not defaults."""

    url: list[str]
    key: str | None
    ca_file: str | None
    timeout: float
    retry_for: float
    cipher: Cipher | None = None
    explicit: frozenset[str] = frozenset()

    def with_defaults(self, **defaults: Any) -> Connection:
        """The same settings with other defaults."""
        return replace(self, **{name: value for name, value in defaults.items() if name not in self.explicit})

    def open(self) -> Client:
        """A client; use it as a context manager."""
        from deferd.client import Client
        from deferd.client.transport import called_via

        with called_via("cli"):
            return Client(self.url, **self._options)

    def open_async(self) -> AsyncClient:
        """A client for asyncio."""
        from deferd.client import AsyncClient

        return AsyncClient(self.url, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS if name != "url"}


def complete_topic(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics that start with the last of these comma-separated names; none if the service cannot be reached."""
    before, comma, start = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in _names(ctx, lambda client: _topics(client, start))]


def complete_schedule(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The schedules whose names start with this text; none if the service cannot be reached."""

    def schedules(client: Client) -> list[str]:
        return [one.name for one in islice(client.schedules(prefix=incomplete, jobs=False), _SCHEDULES_MAX)]

    return [CompletionItem(name) for name in _names(ctx, schedules)]


def _names(ctx: click.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    """The result of `ask` with a client that has the command's options; nothing if the service cannot be reached."""
    with contextlib.suppress(Exception):  # a shell shows no errors of a completion
        settings: dict[str, Any] = {name: ctx.params.get(name) for name in SETTINGS}
        settings |= {"timeout": _TIME_LIMIT_S, "retry_for": 0.0}
        with Connection(**settings).open() as client:
            return ask(client)
    return []


def _topics(client: Client, start: str) -> list[str]:
    names: list[str] = []
    deadline_s = time.monotonic() + _TIME_LIMIT_S
    for page in client.topic_pages():
        names += [view.topic for view in page.topics if view.topic.startswith(start)]
        if time.monotonic() > deadline_s:
            break
    return names


STATES: Final = ("delayed", "ready", "reserved", "dead", "finished")
REASONS: Final = ("expired", "attempts_exhausted", "schedule_ended", "deadline", "buried")
"""Why a job is dead: a copy, because the help does not import `deferd.contract.model`; a test compares the two."""
DURABILITIES: Final = ("memory", "fsync", *(f"replicated:{count}" for count in range(1, REPLICAS_MAX + 1)))
LONG_TIMEOUT_S: Final = 600.0
"""For calls that take the service longer the more jobs there are, and that are not retried without a response."""
_NDJSON: Final = "print JSON, one object a line"
Function = Callable[..., int | None]
Decorator = Callable[[Function], Function]


def all_of(decorators: Iterable[Decorator]) -> Decorator:
    """Several decorators as one, in the order of the help."""

    def decorate(function: Function) -> Function:
        for decorator in reversed([*decorators]):
            function = decorator(function)
        return function

    return decorate


def topic_argument(about: str = "its name", *, name: str = "topic", **attributes: Any) -> Decorator:
    """The argument TOPIC, completed from the topics of the service."""
    return click.argument(name, help=about, shell_complete=complete_topic, **attributes)


def json_option(about: str = _NDJSON) -> Decorator:
    """The option --json, as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def durability_option(about: str) -> Decorator:
    """The option --durability."""
    return click.option("--durability", type=click.Choice(DURABILITIES), metavar="LEVEL", help=about)


topics_argument: Final = topic_argument("names or patterns", name="topics", metavar="[TOPIC]...", nargs=-1)
job_arguments: Final = all_of([topic_argument("the job's topic"), click.argument("id", help="the job's id")])
state_option: Final = click.option("--state", type=click.Choice(STATES), help="only jobs in this state")
error_option: Final = click.option("--error", metavar="TEXT", help="what went wrong, kept as the job's last_error")


def connection_options(function: Function) -> Function:
    """The options of all commands that call a service, as the argument `connection`."""

    @functools.wraps(function)
    def run(**arguments: Any) -> int | None:
        ctx = click.get_current_context()
        values = {name: arguments.pop(name) for name in SETTINGS}
        explicit = frozenset(name for name in SETTINGS if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT)
        return function(connection=Connection(**values, explicit=explicit), **arguments)

    return all_of(setting.option(name) for name, setting in SETTINGS.items())(run)


def client_command(
    *examples: str, json: str = _NDJSON, timeout_s: float | None = None, **attributes: Any
) -> Callable[[Function], Command]:
    """Make a function a command that calls a service: it gets a `client`, and `as_json` by the option --json.

    `json` is the help of that option, `timeout_s` another default of --timeout; for the rest see `command`.
    """
    defaults = {} if timeout_s is None else {"timeout": timeout_s}

    def decorate(function: Function) -> Command:
        @click.command
        @json_option(json)
        @connection_options
        def shared(connection: Connection, **arguments: Any) -> int | None:
            with connection.with_defaults(**defaults).open() as client:
                return function(client=client, **arguments)

        made = command(*examples, **attributes)(function)
        made.params += shared.params  # behind those of the command, also in its help
        made.callback = shared.callback
        return made

    return decorate


def _field(name: str, type_: Any, about: str, metavar: str | None = None, *, many: str | None = None) -> Decorator:
    """An option for a field of a job or a topic: the argument `fields` has the fields that were given.

    `many`: the option may be repeated, and its values are the field of this name: a list, or an object of pairs. An
    empty value stands for none.
    """

    def collect(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        refuse_undecoded(ctx, option, value)
        fields = ctx.params.setdefault("fields", {})
        if option.name and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            if many is None:
                fields[option.name] = value
            else:
                values = [one for one in value if one]
                fields[many] = dict(values) if many == "headers" else values

    return click.option(
        f"--{name}",
        type=type_,
        metavar=metavar,
        help=about,
        expose_value=False,
        callback=collect,
        multiple=many is not None,
    )


log_options: Final = all_of(
    [
        click.option(
            "--log-format",
            type=click.Choice(["console", "json"], case_sensitive=False),
            envvar="DEFERD_LOG_FORMAT",
            default="console",
            help="form of the log lines on stderr; default console [DEFERD_LOG_FORMAT]",
        ),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False),
            envvar="DEFERD_LOG_LEVEL",
            default="info",
            help="lowest level that is logged; default info [DEFERD_LOG_LEVEL]",
        ),
    ]
)
due_options: Final = all_of(
    [
        _field("delay", values.duration, "due this long from now: 90, 30m, 24h, 7d"),
        _field("run-at", values.instant, "due at this instant: 2030-01-31T09:30:00Z"),
    ]
)
_READ: dict[Kind, Any] = {
    Kind.SECONDS: values.duration,
    Kind.COUNT: values.whole,
    Kind.BACKOFF: values.backoff,
    Kind.WINDOW: values.window,
    Kind.ON_END: values.on_end,
    Kind.TEXT: str,
    Kind.DURABILITY: click.Choice(DURABILITIES),
}
_READ_OR_NONE = _READ | {
    Kind.SECONDS: values.duration_or_none,
    Kind.COUNT: values.whole_or_none,
    Kind.DURABILITY: click.Choice([*DURABILITIES, "none"]),
}
_METAVARS = {
    Kind.COUNT: "N",
    Kind.WINDOW: "JSON|NAME",
    Kind.ON_END: "JSON|TOPIC",
    Kind.TEXT: "TEXT",
    Kind.DURABILITY: "LEVEL",
}


def _options_for(fields: Iterable[Field]) -> Decorator:
    """An option for each of these fields."""
    return all_of([*map(_option_for, fields)])


def _option_for(field: Field) -> Decorator:
    read = (_READ_OR_NONE if field.null_is_none else _READ)[field.kind]
    if read is values.whole and field.low:
        read = values.count_from_1
    metavar = "DURATION" if read is values.duration_or_none else _METAVARS.get(field.kind)
    return _field(field.name.replace("_", "-"), read, field.help, metavar)


policy_options: Final = _options_for(POLICY)
label_options: Final = all_of(
    [
        _field("tag", str, "a tag, by which to cancel jobs of all topics together; up to 8", "TAG", many="tags"),
        _field(
            "header", values.header, "a text for the consumer beside the body; up to 16", "NAME=TEXT", many="headers"
        ),
        _field("group", str, "its group, such as a customer; the groups of a topic take turns", "NAME"),
        _field("priority", values.whole, "0 to 9; a higher one is handed out first; default 0", "N"),
    ]
)
collapse_options: Final = all_of(
    [
        _field(
            "conflict-with",
            click.Choice(["any", "live"]),
            "which jobs of this id are in the way: any, or live: only those that still run",
        ),
        _field(
            "if-reserved",
            click.Choice(["refuse", "after"]),
            "when a consumer holds the job: refuse (exit code 3), or after: the put waits until that has ended",
        ),
        _field("max-wait", values.duration, "with replace or append: due at most this long after the first put"),
        _field("max-items", click.IntRange(1), "with --on-conflict append: due at once with this many items", "N"),
        _field("unique-for", values.duration, "how long the id stays taken after the job is finished"),
        _field("batch", str, "the batch that the job is part of: see deferd batch", "NAME"),
    ]
)
LIMIT_FLAGS: Final = ("max_in_flight", "rate", "burst", "per_group_max_in_flight", "per_group_rate")
"""The flags that are parts of the setting `limits`."""
topic_options: Final = all_of(
    [
        _options_for(field for field in (*POLICY, *TOPIC) if field.kind is not Kind.LIMITS),
        _field("max-in-flight", values.whole_or_none, "most jobs that consumers hold at a time; none: no limit", "N"),
        _field("rate", values.rate_or_none, "most deliveries in any such time: 100/s, 5/10s; none: no limit", "N/TIME"),
        _field("burst", values.whole_or_none, "how many of the rate may be handed out at once; none: all", "N"),
        _field("per-group-max-in-flight", values.whole_or_none, "as --max-in-flight, of each group of jobs", "N"),
        _field("per-group-rate", values.rate_or_none, "as --rate, of each group of jobs", "N/TIME"),
    ]
)

if TYPE_CHECKING:
    from deferd.client import AsyncClient, Cipher, Client
