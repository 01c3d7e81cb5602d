"""The service's settings: one frozen object, made once at start from flags and environment, and handed down.

Everything about a setting (name, default, range, text) is declared here, once: the command line's flags, the
environment variables, the help and the error texts are made from it.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from deferd.contract.limits import BODY_DEFAULT_BYTES, HEAD_DEFAULT_BYTES, TEN_YEARS_S, UNSENT_DEFAULT_BYTES

ENV_PREFIX = "DEFERD_"
_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_OF_THE_CLIENT = {
    *("DEFERD_URL", "DEFERD_KEY", "DEFERD_TIMEOUT", "DEFERD_RETRY_FOR"),
    *("DEFERD_COPY_FROM", "DEFERD_COPY_TO"),
}
"""Variables of the client and the command line, which may well be set where a service runs."""


def _whole(default: int, low: int, high: int, text: str, more: str = "") -> Any:
    return Field(default, ge=low, le=high, description=_describe(text, low, high, more))


def _seconds(default: float, low: float, high: float, text: str, more: str = "") -> Any:
    description = _describe(f"{text}, in seconds", low, high, more)
    return Field(default, ge=low, le=high, allow_inf_nan=False, description=description)


def _describe(text: str, low: float, high: float, more: str) -> str:
    return f"{text}, {_plain(low)} to {_plain(high)}. {more}".strip()


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _split_names(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(name == "*" or _HOST_NAME.fullmatch(name) for name in names):
        raise ValueError("is not a host name")
    return names


def _from_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as exc:  # there is no such user
        raise ValueError(str(exc)) from None


class Settings(BaseSettings):
    """How one service runs. Made with nothing it takes the environment and the defaults; see `load_settings`.

    Durations are seconds, as everywhere on the outside. `redis_url` is kept as a secret: it may hold a password.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,  # compose files and charts pass unset values on as empty ones
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address or host name to listen on.")
    port: int = _whole(8000, 0, 65535, "TCP port to listen on", "0 takes any that is free.")
    redis_url: SecretStr | None = Field(
        None,
        description="URL of the store: redis://, rediss://, unix://, redis+sentinel://host:port,.../master-name or "
        "redis+cluster://host:port,... Without it the service runs an embedded store of its own. As a variable it "
        "stays out of the process list.",
    )
    unsupported_store: bool = Field(
        False,
        description="Use a store that is neither Valkey nor Redis, such as Kvrocks, Dragonfly, KeyDB or Garnet, at "
        "your own risk: its scripts may not be atomic, and jobs may be lost; true or false.",
    )
    data_dir: Annotated[Path, AfterValidator(_from_home)] = Field(
        Path("./deferd-data"), description="Folder in which the embedded store keeps its data across restarts."
    )
    keys_file: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None,
        description="TOML file with the keys that callers must have, hashed; `deferd key new` makes them. It is read "
        "again when it changes.",
    )
    keys: SecretStr | None = Field(
        None, description="The same as a text in place of a file. As a variable it stays out of the process list."
    )
    tls_cert: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None,
        description="File with the certificate, and those between it and its root, in PEM form: the service then "
        "speaks HTTPS. It is read again when it or its key changes.",
    )
    tls_key: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None, description="File with the private key of the certificate, in PEM form and without a passphrase."
    )
    insecure: bool = Field(
        False,
        description="Listen on an address beyond this machine although there are no keys, so that whoever reaches it "
        "can do everything; true or false. It answers under public host names only with --allowed-host.",
    )
    allowed_host: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names), AfterValidator(_host_names)] = (
        Field(
            (),
            description="Public host name under which a service without keys answers too: a name, *.example.com for "
            "all names below example.com, or * for any. Give it once for each name, or several with commas between. "
            "Names without a dot, addresses, and names that the public DNS cannot have (such as *.localhost and "
            "*.local) are always answered. With keys every name is answered.",
        )
    )
    workers: int = _whole(1, 1, 256, "Number of processes that serve")
    shards: int = _whole(
        1,
        1,
        1024,
        "Number of hash slots over which topics are spread",
        "A cluster uses more than one. It is stored at the first start and cannot be changed afterwards.",
    )
    tick: float = _seconds(1.0, 0.01, 60.0, "Longest pause of the timer", "It wakes earlier when a job is due earlier.")
    dead_retention: float = _seconds(30 * 86_400.0, 1.0, TEN_YEARS_S, "Time for which a dead job is kept")
    store_timeout: float = _seconds(1.5, 0.1, 60.0, "Time within which the store must answer a call")
    replication_timeout: float = _seconds(
        5.0, 0.1, 60.0, "Time within which replicas must have a put that asks for them", "After it the answer is a 503."
    )
    max_body_bytes: int = _whole(BODY_DEFAULT_BYTES, 1024, 64 * 1024 * 1024, "Largest request body, in bytes")
    max_head_bytes: int = _whole(
        HEAD_DEFAULT_BYTES,
        1024,
        1024 * 1024,
        "Largest request head, the request line with all headers, in bytes",
    )
    max_connections: int = _whole(
        16_384,
        1,
        1_000_000,
        "Most connections that one serving process has open",
        "Fewer where the system allows it fewer open files. One more is answered 503.",
    )
    max_unsent_bytes: int = _whole(
        UNSENT_DEFAULT_BYTES,
        1024 * 1024,
        1024**4,
        "Most bytes of responses that one serving process keeps for clients that do not read them, and half of it for "
        "those of one key",
        "Above it stalled clients are cut off, and large responses refused.",
    )
    head_timeout: float = _seconds(10.0, 0.1, 600.0, "Time within which the head of a request must have come")
    body_timeout: float = _seconds(30.0, 0.1, 3600.0, "Time within which the body of a request must have come")
    answer_timeout: float = _seconds(
        60.0, 0.1, 3600.0, "Time within which a client must take an answer that is too large to be sent at once"
    )
    max_topic_labels: int = _whole(
        100, 0, 10_000, "Number of topics that the metrics name one by one", "Those beyond are counted together."
    )
    drain_timeout: float = _seconds(8.0, 0.0, 60.0, "Time that requests under way get to end at shutdown")
    test_clock: bool = Field(
        False,
        description="For tests only: offer POST /testing/clock, which moves the clock of the service's own embedded "
        "store; true or false. Not with a store of your own.",
    )
    log_format: Annotated[Literal["console", "json"], BeforeValidator(_lower_case)] = Field(
        "console", description="Form of the log lines on standard error: console or json."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower_case)] = (
        Field("info", description="Least level that is logged: debug, info, warning, error or critical.")
    )


class SettingsError(Exception):
    """One or more settings have wrong values; each of `problems` is a sentence that names setting, value and range."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def load_settings(flags: Mapping[str, str]) -> Settings:
    """The settings of `flags` (field name to text, only those given), then of the environment, then the defaults.

    Raises:
        SettingsError: a value is of the wrong kind or outside its range, or two exclude each other. Secrets are not
            shown.
    """
    given: dict[str, Any] = dict(flags)
    try:
        settings = Settings(**given)
    except ValidationError as exc:
        faults = {str(fault["loc"][0]): fault["input"] for fault in exc.errors(include_url=False)}
        raise SettingsError([problem(name, value) for name, value in faults.items()]) from None
    if settings.test_clock and settings.redis_url is not None:
        sentence = (
            f"{flag('test_clock')} ({variable('test_clock')}) moves the clock of the service's own embedded store, and "
            f"cannot be had together with {flag('redis_url')} ({variable('redis_url')})"
        )
        raise SettingsError([sentence])
    if settings.keys is not None and settings.keys_file is not None:
        sentence = (
            f"{flag('keys')} ({variable('keys')}) cannot be had together with {flag('keys_file')} "
            f"({variable('keys_file')}): keys are in one place"
        )
        raise SettingsError([sentence])
    if (settings.tls_cert is None) != (settings.tls_key is None):
        alone, other = ("tls_cert", "tls_key") if settings.tls_key is None else ("tls_key", "tls_cert")
        sentence = (
            f"{flag(alone)} ({variable(alone)}) needs {flag(other)} ({variable(other)}): HTTPS takes a certificate and "
            "its key"
        )
        raise SettingsError([sentence])
    return settings


def flag(name: str) -> str:
    """The command line's flag for a field."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable for a field."""
    return ENV_PREFIX + name.upper()


def problem(name: str, value: object, wanted: str | None = None) -> str:
    """The sentence that refuses `value` for a field; `wanted` instead of what the field's own declaration says."""
    field = Settings.model_fields[name]
    shown = "has a value that is not shown" if _is_secret(field) else f"is {str(value)[:100]!r}"
    text = f"{flag(name)} ({variable(name)}) {shown}, but must be {wanted or accepted(name)}"
    if str(value).startswith("tcp://") and not _is_secret(field):
        text += "; Kubernetes sets such variables for a Service of the name deferd: set enableServiceLinks to false"
    return text


def accepted(name: str) -> str:
    """What a field takes, in words: kind and range."""
    field = Settings.model_fields[name]
    kind = _plain_type(field.annotation)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "host names without a port, such as jobs.example.com, *.example.com, or * for any"
    low = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    high = next((bound.le for bound in field.metadata if hasattr(bound, "le")), None)
    if low is not None and high is not None:
        return f"a {'whole number' if kind is int else 'number'} from {_plain(low)} to {_plain(high)}"
    return {Path: "a path", bool: "true or false"}.get(kind, "a text that is not empty")


def default_text(name: str) -> str | None:
    """A field's default as one would write it, or None when there is none."""
    default = Settings.model_fields[name].default
    if isinstance(default, Path):
        return path_text(default)
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int | float):
        return _plain(default)
    return default if isinstance(default, str) else None


def path_text(path: Path) -> str:
    """A path as one would write it: a relative one is seen to be one."""
    return str(path) if path.is_absolute() else f"./{path}"


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """A sentence for each DEFERD_* variable that is no setting: a typo must not pass in silence."""
    known = {variable(name) for name in Settings.model_fields} | _OF_THE_CLIENT
    sentences = []
    for name in sorted(environment):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.75)
            sentences.append(
                f"the environment variable {name} is no setting of deferd"
                + (f"; is {close[0]} meant?" if close else "")
            )
    return sentences


def _plain_type(annotation: Any) -> Any:
    """`X | None` as X, with or without notes on X."""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_secret(field: FieldInfo) -> bool:
    return _plain_type(field.annotation) is SecretStr
