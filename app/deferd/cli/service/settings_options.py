"""The options of `serve`, made from `deferd.settings.Settings`: nothing is declared twice."""

from __future__ import annotations

from typing import Any, get_origin

import click
from click.core import ParameterSource

from deferd.settings import Settings, default_text, flag, variable


def setting_options() -> list[click.Parameter]:
    """An option for each setting. The argument `settings` has those that were given, as text: see `load_settings`."""
    options: list[click.Parameter] = []
    for name, field in Settings.model_fields.items():
        default = default_text(name)
        about = f"{field.description}" + (f" Default: {default}." if default else "")
        kind: dict[str, Any] = {"metavar": "SECONDS" if field.annotation is float else name.rpartition("_")[2].upper()}
        if field.annotation is bool:
            kind = {"metavar": "true|false", "is_flag": False, "flag_value": "true"}
        elif get_origin(field.annotation) is tuple:
            kind |= {"multiple": True}
        help_text = f"{about} [{variable(name)}]"
        options.append(click.Option([flag(name), name], **kind, help=help_text, expose_value=False, callback=_collect))
    return options


def _collect(ctx: click.Context, option: click.Parameter, value: str | tuple[str, ...] | None) -> None:
    settings: dict[str, str] = ctx.params.setdefault("settings", {})
    if option.name and value is not None and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
        settings[option.name] = value if isinstance(value, str) else ",".join(value)  # as in a variable
