"""The service's settings: one frozen object, made at start from flags and environment variables, and passed down.

Each setting is declared once, with name, default, range and text; flags, environment variables, help and error texts
derive from it.
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

from deferd.contract.durations import parse_duration
from deferd.contract.flag_fields import accepted_numbers, flag, number, plain, quoted, whole_number
from deferd.contract.limits import (
    BODY_DEFAULT_BYTES,
    BODY_MAX_BYTES,
    HEAD_DEFAULT_BYTES,
    TEN_YEARS_S,
    UNSENT_DEFAULT_BYTES,
)
from deferd.contract.push_targets import AllowedTargets

__all__ = [
    "ENV_PREFIX",
    "Settings",
    "SettingsError",
    "accepted",
    "default_text",
    "flag",
    "load_settings",
    "path_text",
    "problem",
    "shown_settings",
    "unknown_variables",
    "variable",
]

ENV_PREFIX = "DEFERD_"
_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_CLIENT_VARIABLES = {
    *("DEFERD_URL", "DEFERD_KEY", "DEFERD_CA_FILE", "DEFERD_TIMEOUT", "DEFERD_RETRY_FOR"),
    *("DEFERD_COPY_FROM", "DEFERD_COPY_TO", "DEFERD_PUSH_SECRET", "DEFERD_OUTBOX_URL"),
}
"""Variables of the client and the command line, which may also be set where a service runs."""


def _seconds(default: float, low: float, high: float, text: str, more: str = "") -> Any:
    return number(default, low, high, f"{text}, in seconds", more)


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _to_seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _split_names(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _split_urls(value: object) -> object:
    """Split at spaces, and at commas before another URL: commas separate also the hosts of one."""
    if not isinstance(value, str):
        return value
    urls: list[str] = []
    for word in value.split():
        first, *others = word.split(",")
        urls.append(first)
        for part in filter(None, others):
            if "://" in part:
                urls.append(part)
            else:
                urls[-1] += f",{part}"
    return tuple(filter(None, urls))


def _mask_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    names = [name for pattern in patterns for name in pattern.split(".")]
    if not all(names) or any(map(str.isspace, "".join(names))):
        raise ValueError("is not a pattern of a field")
    return patterns


def _host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(name == "*" or _HOST_NAME.fullmatch(name) for name in names):
        raise ValueError("is not a host name")
    return names


def _from_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as exc:  # there is no such user
        raise ValueError(str(exc)) from None


def _target_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    AllowedTargets(patterns)
    return patterns


def _networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    AllowedTargets((), networks)
    return networks


class Settings(BaseSettings):
    """The configuration of one service. Without arguments it comes from the environment; see `load_settings`.

    Durations are in seconds. `redis_url` is a secret: it may hold a password.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,  # compose files and charts pass unset values as empty ones
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address or host name to listen on.")
    port: int = whole_number(8000, 0, 65535, "TCP port to listen on", "0 picks a free port.")
    resp_port: int | None = whole_number(
        None,
        0,
        65535,
        "TCP port for clients of Redis, on the same host",
        "0 picks a free port. Without it the Redis protocol is not served.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="URL of the store: redis://, rediss://, unix://, redis+sentinel://host:port,.../master-name or "
        "redis+cluster://host:port,... Without it the service runs an embedded store. Set it as a variable to keep it "
        "out of the process list.",
    )
    unsupported_store: bool = Field(
        False,
        description="Accept a store that is neither Valkey nor Redis, such as Kvrocks, Dragonfly, KeyDB or Garnet, at "
        "your own risk: its scripts may not be atomic, and jobs may be lost; true or false.",
    )
    data_dir: Annotated[Path, AfterValidator(_from_home)] = Field(
        Path("./deferd-data"), description="Directory in which the embedded store keeps its data across restarts."
    )
    shelf_after: Annotated[float | None, BeforeValidator(_to_seconds)] = number(
        None,
        0.0,
        TEN_YEARS_S,
        "How far away jobs must be due to be kept in files beside the embedded store instead of in its memory, in "
        "seconds, or with a unit, such as 2h",
        "They come back when half of that time is left. It cannot be combined with --redis-url.",
    )
    keys_file: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None,
        description="TOML file with the hashes of the keys that clients must present; `deferd key new` makes them. It "
        "is reloaded when it changes.",
    )
    keys: SecretStr | None = Field(
        None, description="The content of a keys file as text. Set it as a variable to keep it out of the process list."
    )
    tls_cert: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None,
        description="PEM file with the certificate and its intermediate certificates; enables HTTPS. It is reloaded "
        "when it or its key changes.",
    )
    tls_key: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None, description="PEM file with the private key of the certificate, without a passphrase."
    )
    insecure: bool = Field(
        False,
        description="Listen on an address that other machines can reach although there are no keys, so that anyone who "
        "can connect can do everything; true or false. Public host names also need --allowed-host.",
    )
    allowed_host: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names), AfterValidator(_host_names)] = (
        Field(
            (),
            description="Public host name that a service without keys accepts in requests: a name, *.example.com for "
            "all names below example.com, or * for any. Repeat the flag or separate names with commas. Names without "
            "a dot, addresses, and names that cannot be in the public DNS (such as *.localhost and *.local) are always "
            "accepted. With keys every name is accepted.",
        )
    )
    workers: int = whole_number(1, 1, 256, "Number of server processes")
    shards: int = whole_number(
        1,
        1,
        1024,
        "Number of hash slots over which topics are spread",
        "A cluster uses more than one. The number is stored at the first start and cannot be changed afterwards.",
    )
    tick: float = _seconds(1.0, 0.01, 60.0, "Longest sleep of the timer", "It wakes earlier when a job is due.")
    dead_retention: float = _seconds(30 * 86_400.0, 1.0, TEN_YEARS_S, "How long a dead job is kept")
    store_timeout: float = _seconds(1.5, 0.1, 60.0, "How long to wait for a response of the store")
    replication_timeout: float = _seconds(
        5.0, 0.1, 60.0, "How long to wait for the replicas that a put asks for", "After that the response is 503."
    )
    max_body_bytes: int = whole_number(BODY_DEFAULT_BYTES, 1024, BODY_MAX_BYTES, "Largest request body, in bytes")
    max_head_bytes: int = whole_number(
        HEAD_DEFAULT_BYTES,
        1024,
        1024 * 1024,
        "Largest request head (request line and headers), in bytes",
    )
    max_connections: int = whole_number(
        16_384,
        1,
        1_000_000,
        "Most open connections of one server process",
        "Fewer where the system allows fewer open files. Further connections get 503.",
    )
    max_unsent_bytes: int = whole_number(
        UNSENT_DEFAULT_BYTES,
        1024 * 1024,
        1024**4,
        "Most bytes of unread responses that one server process buffers",
        "The clients of one key may use half. Above it stalled clients are disconnected and large responses refused.",
    )
    head_timeout: float = _seconds(10.0, 0.1, 600.0, "How long a client may take to send a request head")
    body_timeout: float = _seconds(30.0, 0.1, 3600.0, "How long a client may take to send a request body")
    answer_timeout: float = _seconds(
        60.0, 0.1, 3600.0, "How long a client may take to read a response that is too large to be sent at once"
    )
    max_topic_labels: int = whole_number(
        100, 0, 10_000, "Number of topics with their own metrics", "The other topics are counted together."
    )
    drain_idle_timeout: float = _seconds(
        0.08,
        0.0,
        60.0,
        "How long idle connections stay open at shutdown for one more request",
        "Its response tells the client to close the connection. The service ends sooner when all are closed.",
    )
    drain_timeout: float = _seconds(8.0, 0.0, 60.0, "How long requests in progress may take to finish at shutdown")
    environment: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,32}$",
        description="Name of the environment, such as production: the console shows it on each page and in its title, "
        "and asks for it where a name must be typed to confirm.",
    )
    environment_color: Annotated[Literal["red", "orange", "green", "blue", "gray"], BeforeValidator(_lower_case)] = (
        Field(
            "gray",
            description="Color of the environment in the console: red, orange, green, blue or gray.",
        )
    )
    console_mask: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_split_names), AfterValidator(_mask_patterns)
    ] = Field(
        (),
        description="Fields of bodies, results and headers that the console hides, such as password or *.token: names "
        "with dots between them, which match the end of a field's path; * stands for any characters. Repeat the flag "
        "or separate patterns with commas.",
    )
    push_allow: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_split_names), AfterValidator(_target_patterns)
    ] = Field(
        (),
        description="Host to which jobs may be pushed: a name, *.example.com for all names below example.com, or * for "
        "any, with :PORT unless it is that of https, and http:// before it if it has no TLS. Only public addresses are "
        "connected to, except one that is named here itself, localhost, and --push-network. Without it nothing is "
        "pushed. Repeat the flag or separate hosts with commas.",
    )
    trusted_proxy: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names), AfterValidator(_networks)] = (
        Field(
            (),
            description="Network of reverse proxies, such as 10.1.0.0/16, whose X-Forwarded-For says who makes a "
            "request. Repeat the flag or separate networks with commas.",
        )
    )
    push_network: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names), AfterValidator(_networks)] = (
        Field(
            (),
            description="Network that is not public, such as 10.1.0.0/16, in which hosts of --push-allow may be. "
            "Repeat the flag or separate networks with commas.",
        )
    )
    push_ca_file: Annotated[Path, AfterValidator(_from_home)] | None = Field(
        None,
        description="PEM file with certificate authorities that may sign the certificates of push targets, beside "
        "those of the system.",
    )
    relay: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_urls)] = Field(
        (),
        description="URL of a PostgreSQL database whose outbox the service sends, as `deferd relay` does: "
        "postgresql://user@host/name. Repeat the flag or separate URLs with spaces. Set it as a variable to keep "
        "passwords out of the process list.",
    )
    test_clock: bool = Field(
        False,
        description="For tests only: offer POST /testing/clock, which moves the clock of the embedded store; true or "
        "false. It cannot be combined with --redis-url.",
    )
    tracing: bool = Field(
        False,
        description="Make spans of OpenTelemetry for requests; true or false. Needs opentelemetry-sdk and an exporter, "
        "which the variables OTEL_* configure.",
    )
    log_format: Annotated[Literal["console", "json"], BeforeValidator(_lower_case)] = Field(
        "console", description="Format of the log lines on standard error: console or json."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower_case)] = (
        Field("info", description="Lowest level that is logged: debug, info, warning, error or critical.")
    )


class SettingsError(Exception):
    """One or more settings are invalid; each of `problems` is a sentence that names setting, value and range."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def load_settings(flags: Mapping[str, str]) -> Settings:
    """The settings from `flags` (field name to text, only those given), then the environment, then the defaults.

    Raises:
        SettingsError: a value has the wrong type or is out of range, or two settings exclude each other. Secrets are
            not shown.
    """
    arguments: dict[str, Any] = dict(flags)
    try:
        settings = Settings(**arguments)
    except ValidationError as exc:
        refused = {str(error["loc"][0]): error["input"] for error in exc.errors(include_url=False)}
        raise SettingsError([problem(name, value) for name, value in refused.items()]) from None
    if settings.test_clock and settings.redis_url is not None:
        text = (
            f"{_both('test_clock')} moves the clock of the service's own embedded store, and cannot be combined with "
        )
        raise SettingsError([text + _both("redis_url")])
    if settings.shelf_after is not None and settings.redis_url is not None:
        text = f"{_both('shelf_after')}: the shelf needs the embedded store, and cannot be combined with "
        raise SettingsError([text + _both("redis_url")])
    if settings.keys is not None and settings.keys_file is not None:
        text = f"{_both('keys')} cannot be combined with {_both('keys_file')}: give the keys in one place"
        raise SettingsError([text])
    if (settings.tls_cert is None) != (settings.tls_key is None):
        present, missing = ("tls_cert", "tls_key") if settings.tls_key is None else ("tls_key", "tls_cert")
        raise SettingsError([f"{_both(present)} needs {_both(missing)}: HTTPS takes a certificate and its key"])
    return settings


def variable(name: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + name.upper()


def _both(name: str) -> str:
    return f"{flag(name)} ({variable(name)})"


def problem(name: str, value: object, wanted: str | None = None) -> str:
    """The sentence that refuses `value` for a field; `wanted` replaces the text from the field's declaration."""
    field = Settings.model_fields[name]
    shown = "has a value that is not shown" if _is_secret(field) else f"is {quoted(value)}"
    text = f"{_both(name)} {shown}, but must be {wanted or accepted(name)}"
    if str(value).startswith("tcp://") and not _is_secret(field):
        text += "; Kubernetes sets such variables for a Service named deferd: set enableServiceLinks to false"
    return text


def accepted(name: str) -> str:
    """The values that a field accepts, in words: type and range."""
    field = Settings.model_fields[name]
    kind = _plain_type(field.annotation)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if name == "environment":
        return "1 to 32 letters, digits, dots, hyphens and underscores, such as production"
    if name == "console_mask":
        return "names of fields with dots between them, such as password or *.token"
    if name == "shelf_after":
        return f"{accepted_numbers(field)}, in seconds, or a duration such as 2h, 30m or 0s"
    if name == "push_allow":
        return "hosts such as hooks.example.com, *.example.com:8443, http://10.0.0.7:8080, or *"
    if name == "relay":
        return "URLs of PostgreSQL databases, such as postgresql://user@host/name"
    if name in {"push_network", "trusted_proxy"}:
        return "networks such as 10.1.0.0/16"
    if get_origin(kind) is tuple:
        return "host names without a port, such as jobs.example.com, *.example.com, or * for any"
    return accepted_numbers(field) or {Path: "a path", bool: "true or false"}.get(kind, "a non-empty text")


def default_text(name: str) -> str | None:
    """The default of a field as a user would write it; None without one."""
    default = Settings.model_fields[name].default
    if isinstance(default, Path):
        return path_text(default)
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int | float):
        return plain(default)
    return default if isinstance(default, str) else None


def path_text(path: Path) -> str:
    """A path as a user would write it; a relative one begins with ./ to be recognizable."""
    return str(path) if path.is_absolute() else f"./{path}"


def shown_settings(settings: Settings) -> dict[str, Any]:
    """The values that may be shown to who may read everything: all but secrets and paths."""
    return {
        name: getattr(settings, name)
        for name, field in Settings.model_fields.items()
        if _plain_type(field.annotation) is not Path and not _is_secret(field)
    }


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """A sentence for each DEFERD_* variable that is not a setting: it may be a typo."""
    known = {variable(name) for name in Settings.model_fields} | _CLIENT_VARIABLES
    sentences = []
    for name in sorted(environment):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.75)
            sentences.append(
                f"the environment variable {name} is not a setting of deferd"
                + (f"; did you mean {close[0]}?" if close else "")
            )
    return sentences


def _plain_type(annotation: Any) -> Any:
    """X for `X`, `X | None` and `Annotated[X, ...]`."""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_secret(field: FieldInfo) -> bool:
    kind = _plain_type(field.annotation)
    return SecretStr in (kind, *get_args(kind))
