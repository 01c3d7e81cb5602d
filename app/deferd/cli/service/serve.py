"""`deferd serve`; its options are made from `deferd.settings.Settings`, so nothing is declared twice."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any, get_origin

import click
from click.core import ParameterSource

from deferd import __version__
from deferd.cli.framework import exit_codes
from deferd.cli.framework.command import Command, fail
from deferd.settings import (
    Settings,
    SettingsError,
    accepted,
    default_text,
    flag,
    load_settings,
    problem,
    unknown_variables,
    variable,
)
from deferd.store.url import StoreUrlError, parse_store_url

_EPILOG = """examples:
  deferd serve
  deferd serve --host 0.0.0.0 --port 8000 --data-dir /var/lib/deferd
  DEFERD_REDIS_URL=redis://:password@db.example:6379 deferd serve --workers 4

exit codes: 0 ended by SIGTERM, SIGHUP or Ctrl-C; 1 cannot serve: the port is in use, the store
refuses; 2 a wrong setting"""


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


def _stop_at_end_of_input() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held at interpreter exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _check_relays(urls: Sequence[str]) -> None:
    from deferd.outbox.administration import check_url  # not all services have psycopg: `main` says what to install

    for number, url in enumerate(urls, start=1):
        try:
            check_url(url)
        except ValueError as error:
            wanted = f"{accepted('relay')}: number {number} {error}"
            raise SettingsError([problem("relay", "", wanted)]) from None


@click.command(cls=Command, params=setting_options(), epilog=_EPILOG)
@click.option("--stop-at-end-of-input", is_flag=True, hidden=True)
def serve(settings: dict[str, str], stop_at_end_of_input: bool) -> int:
    """Run the service until SIGTERM, SIGHUP or Ctrl-C. Each setting is an option and an environment variable; the
    option takes precedence.
    """
    # For `deferd.testing`: the input is a pipe from the tests, which closes when they end, even by SIGKILL.
    if stop_at_end_of_input:
        threading.Thread(target=_stop_at_end_of_input, daemon=True, name="stdin-watch").start()
    try:
        loaded = load_settings(settings)
        if loaded.redis_url is not None:
            parse_store_url(loaded.redis_url.get_secret_value())
        if loaded.relay:
            _check_relays([url.get_secret_value() for url in loaded.relay])
    except SettingsError as error:
        return fail(*error.problems, code=exit_codes.USAGE)
    except StoreUrlError as error:
        return fail(problem("redis_url", "", wanted=str(error)), code=exit_codes.USAGE)
    gc.disable()  # imports leave hardly any garbage: looking for it would be a sixth of the processor time of a start
    from deferd.server import run  # after the settings: this import takes half a second

    gc.freeze()
    gc.enable()
    return run.run(loaded, version=__version__, warnings=unknown_variables(os.environ))
