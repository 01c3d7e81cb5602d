"""Where the service is and how to call it: options, else variables, else defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from deferd.cli.framework import values

if TYPE_CHECKING:
    from deferd.client import AsyncClient, Client


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
}
"""By the name of the argument."""


@dataclass(frozen=True)
class Connection:
    """The settings of a client. Durations are seconds. `explicit` names the fields that are not defaults."""

    url: list[str]
    key: str | None
    timeout: float
    retry_for: float
    explicit: frozenset[str] = frozenset()

    def with_defaults(self, **defaults: Any) -> Connection:
        """The same settings with other defaults."""
        return replace(self, **{name: value for name, value in defaults.items() if name not in self.explicit})

    def open(self) -> Client:
        """A client; use it as a context manager."""
        from deferd.client import Client
        from deferd.client.user_agent import called_via

        with called_via("cli"):
            return Client(self.url, key=self.key, timeout=self.timeout, retry_for=self.retry_for)

    def open_async(self) -> AsyncClient:
        """A client for asyncio."""
        from deferd.client import AsyncClient

        return AsyncClient(self.url, key=self.key, timeout=self.timeout, retry_for=self.retry_for)
