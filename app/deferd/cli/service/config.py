"""`deferd config`: the settings in effect, and the source of each."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import click
from click.core import ParameterSource

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import command, fail
from deferd.cli.framework.options import SETTINGS, all_of, json_option
from deferd.cli.framework.output import Column
from deferd.version import how_to_install

_COLUMNS = [Column("SETTING"), Column("VALUE"), Column("FROM"), Column("VARIABLE")]
_NOT_SHOWN = "(set, not shown)"
_NO_SERVICE = f"the service is not installed here: {how_to_install('server')}"
_SOURCES = {ParameterSource.COMMANDLINE: "flag", ParameterSource.ENVIRONMENT: "env"}


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
    """The settings of `serve`. `problems` are sentences about wrong settings, `warnings` about variables."""

    settings: list[Setting]
    problems: list[str]
    warnings: list[str]


def _service_options() -> list[click.Parameter]:
    """The options of `serve`; none if the service is not installed."""
    try:
        from deferd.cli.service.serve import setting_options
    except ModuleNotFoundError as error:
        if (error.name or "deferd").partition(".")[0] == "deferd":
            raise
        return []
    return setting_options()


@command("deferd config", "DEFERD_PORT=9000 deferd config --workers 4 --json", params=_service_options())
@json_option("print JSON")
@all_of(setting.option(name, as_text=True) for name, setting in SETTINGS.items())  # a wrong value is shown as well
@click.pass_context
def config(ctx: click.Context, /, as_json: bool, settings: dict[str, str] | None = None, **texts: str | None) -> int:
    """Show the settings of `serve` and of the commands that call a service as they are in effect here, each with its
    source: flag, env or default. It takes the options of both. Secrets are not shown.
    """
    service = None if settings is None else _service_settings(settings)
    client = _client_settings(ctx, texts)
    if as_json:
        output.json_line(
            {
                "serve": service and [setting._asdict() for setting in service.settings],
                "client": [setting._asdict() for setting in client],
            }
        )
    else:
        output.line("deferd serve")
        if service is None:
            output.line(f"  {_NO_SERVICE}")
        else:
            output.show_table(_COLUMNS, [_row(setting) for setting in service.settings])
        output.line("")
        output.line("the commands that call a service, and worker")
        output.show_table(_COLUMNS, [_row(setting) for setting in client])
    for warning in service.warnings if service else []:
        output.complain(warning)
    problems = [*(service.problems if service else []), *_client_problems(ctx, texts)]
    return fail(*problems, code=exit_codes.USAGE) if problems else exit_codes.DONE


def _service_settings(flags: dict[str, str]) -> ServiceSettings:
    from deferd.settings import Settings, SettingsError, default_text, flag, load_settings, unknown_variables, variable

    problems: list[str] = []
    try:
        load_settings(flags)
    except SettingsError as error:
        problems = error.problems
    settings = []
    for name, field in Settings.model_fields.items():
        value, source = default_text(name), "default"
        if name in flags:
            value, source = flags[name], "flag"
        elif os.environ.get(variable(name)):
            value, source = os.environ[variable(name)], "env"
        secret = "SecretStr" in str(field.annotation)
        settings.append(Setting(name, flag(name), variable(name), None if secret else value, source, secret))
    of_client = {setting.variable for setting in SETTINGS.values()}
    return ServiceSettings(settings, problems, unknown_variables(name for name in os.environ if name not in of_client))


def _client_settings(ctx: click.Context, texts: dict[str, str | None]) -> list[Setting]:
    settings = []
    for name, setting in SETTINGS.items():
        # A URL may be wrong because it has a password.
        value = None if setting.secret else _without_password(texts[name]) if name == "url" else texts[name]
        settings.append(Setting(name, setting.flag, setting.variable, value, _source(ctx, name), setting.secret))
    return settings


def _client_problems(ctx: click.Context, texts: dict[str, str | None]) -> list[str]:
    problems = []
    for name, setting in SETTINGS.items():
        try:
            text = texts[name]
            if text is not None:
                setting.read(text)
        except click.BadParameter as error:
            where = f"{setting.variable} ({setting.flag})" if _source(ctx, name) == "env" else setting.flag
            problems.append(f"{where}: {error.message}")
    return problems


def _source(ctx: click.Context, name: str) -> str:
    source = ctx.get_parameter_source(name)
    return "default" if source is None else _SOURCES.get(source, "default")


def _without_password(urls: str | None) -> str | None:
    if urls is None:
        return None
    # Also commas may be in the password, so nothing before the last @ is shown except the first scheme.
    return re.sub(r"\A(\w+://)?.*@", r"\1...@", urls, flags=re.DOTALL)


def _row(setting: Setting) -> list[str]:
    return [setting.flag, setting.shown, setting.source, setting.variable]
