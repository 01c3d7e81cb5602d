"""`config`: the settings in effect and where each is from."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from deferd.cli import exit_codes, output
from deferd.cli.connection import SETTINGS, find, read_connection
from deferd.cli.exit_codes import UsageError
from deferd.cli.output import Column

_COLUMNS = [Column("SETTING"), Column("VALUE"), Column("FROM"), Column("VARIABLE")]
_NOT_SHOWN = "(set, not shown)"


class Setting(NamedTuple):
    """A setting in effect. `value` is None when it is not set, and when it is a secret."""

    name: str
    flag: str
    variable: str
    value: str | float | None
    source: str
    secret: bool = False

    @property
    def shown(self) -> str:
        """The value for people."""
        if self.secret and self.source != "default":
            return _NOT_SHOWN
        return "-" if self.value is None else str(self.value)


class ServiceSettings(NamedTuple):
    """The settings of `serve`. `problems` are sentences about those that are wrong; `warnings` about variables."""

    settings: list[Setting]
    problems: list[str]
    warnings: list[str]


def config(given: argparse.Namespace) -> int:
    """Show them. `given.service_settings` is a ServiceSettings, or a text: why there are none."""
    service: ServiceSettings | str = given.service_settings
    client = client_settings(vars(given), os.environ)
    if given.json:
        output.json_line(
            {
                "serve": None if isinstance(service, str) else [_as_json(setting) for setting in service.settings],
                "client": [_as_json(setting) for setting in client],
            }
        )
    else:
        output.line("deferd serve")
        if isinstance(service, str):
            output.line(f"  {service}")
        else:
            output.show_table(_COLUMNS, [_row(setting) for setting in service.settings])
        output.line("")
        output.line("the commands that call a service, and worker")
        output.show_table(_COLUMNS, [_row(setting) for setting in client])
    problems = [] if isinstance(service, str) else service.problems
    for sentence in [] if isinstance(service, str) else [*service.warnings, *problems]:
        output.complain(sentence)
    try:
        read_connection(vars(given))
    except UsageError as error:
        output.complain(str(error))
        return exit_codes.USAGE
    return exit_codes.USAGE if problems else exit_codes.DONE


def client_settings(given: Mapping[str, Any], environment: Mapping[str, str]) -> list[Setting]:
    """Those of the commands that call a service."""
    settings = []
    for name, setting in SETTINGS.items():
        text, source = find(name, given, environment)
        # A URL may be wrong by having a password in it.
        value = None if setting.secret else _without_password(text) if name == "url" else text
        settings.append(Setting(name, setting.flag, setting.variable, value, source, setting.secret))
    return settings


def _without_password(urls: str | None) -> str | None:
    if urls is None:
        return None
    # Also commas may be in the password, so nothing before the last @ is shown except the first scheme.
    return re.sub(r"\A(\w+://)?.*@", r"\1...@", urls, flags=re.DOTALL)


def _row(setting: Setting) -> list[str]:
    return [setting.flag, setting.shown, setting.source, setting.variable]


def _as_json(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "flag": setting.flag,
        "variable": setting.variable,
        "value": setting.value,
        "source": setting.source,
        "secret": setting.secret,
    }
