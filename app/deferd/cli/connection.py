"""Where the service is and how to talk to it: flags, else variables, else defaults."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from deferd.cli import values
from deferd.cli.exit_codes import UsageError

if TYPE_CHECKING:
    from deferd.client import AsyncClient, Client


class ConnectionSetting(NamedTuple):
    """One setting of the client's commands. `default` is as one would write it; `read` makes it a value."""

    flag: str
    variable: str
    default: str | None
    read: Callable[[str], Any]
    about: str
    metavar: str
    secret: bool = False


SETTINGS = {
    "url": ConnectionSetting(
        "--url",
        "DEFERD_URL",
        "http://127.0.0.1:8000",
        values.service_urls,
        "where the service is; several replicas with commas between them: the next is asked when one is away",
        "URL",
    ),
    "key": ConnectionSetting(
        "--key",
        "DEFERD_KEY",
        None,
        values.key,
        "bearer key; better in the variable, where other users of this machine do not see it",
        "KEY",
        secret=True,
    ),
    "timeout": ConnectionSetting(
        "--timeout",
        "DEFERD_TIMEOUT",
        "10s",
        values.timeout,
        "longest wait for an answer, beyond the --wait of a pop; 0.1s to 1h",
        "DURATION",
    ),
    "retry_for": ConnectionSetting(
        "--retry-for",
        "DEFERD_RETRY_FOR",
        "5s",
        values.retry_time,
        "how long to ask again when the service is away or busy, where that does no harm; 0 to 24h",
        "DURATION",
    ),
}
"""By the name of the argument."""


class Found(NamedTuple):
    """A setting's value as text, and where it is from: `flag`, `env` or `default`."""

    text: str | None
    source: str


def find(name: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> Found:
    """The setting's text: the flag's, else the variable's (an empty one counts as none), else the default."""
    setting = SETTINGS[name]
    if given.get(name) is not None:
        return Found(given[name], "flag")
    if environment.get(setting.variable):
        return Found(environment[setting.variable], "env")
    return Found(setting.default, "default")


@dataclass(frozen=True)
class Connection:
    """What a client needs to know. Durations are seconds."""

    urls: list[str]
    key: str | None
    timeout_s: float
    retry_for_s: float

    def open(self) -> Client:
        """A client; use it as a context manager."""
        from deferd.client import Client  # the help does without it

        return Client(self.urls, key=self.key, timeout=self.timeout_s, retry_for=self.retry_for_s)

    def open_async(self, *, retry_for_s: float | None = None) -> AsyncClient:
        """A client for asyncio; `retry_for_s` in place of the connection's own."""
        from deferd.client import AsyncClient

        retry_for_s = self.retry_for_s if retry_for_s is None else retry_for_s
        return AsyncClient(self.urls, key=self.key, timeout=self.timeout_s, retry_for=retry_for_s)

    def one(self, url: str) -> Connection:
        """The same for one of the URLs alone."""
        return replace(self, urls=[url])


def read_connection(
    given: Mapping[str, Any], environment: Mapping[str, str] = os.environ, **defaults: str
) -> Connection:
    """The connection that flags (argument name to text) and variables describe; `defaults` in place of the usual ones.

    Raises:
        UsageError: a value is wrong; names flag and variable, and shows no secret.
    """
    read: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        text, source = find(name, given, environment)
        if source == "default":
            text = defaults.get(name, text)
        try:
            read[name] = None if text is None else setting.read(text)
        except ArgumentTypeError as error:
            where = setting.flag if source == "flag" else f"{setting.variable} ({setting.flag})"
            raise UsageError(f"{where}: {error}") from None
    return Connection(read["url"], read["key"], read["timeout"], read["retry_for"])
