"""`deferd serve`."""

from __future__ import annotations

import os

import click

from deferd.cli.framework import exit_codes
from deferd.cli.framework.command import Command, fail
from deferd.cli.framework.version import version
from deferd.cli.service.settings_options import setting_options
from deferd.settings import SettingsError, load_settings, problem, unknown_variables
from deferd.store.url import StoreUrlError, parse_store_url

_EPILOG = """examples:
  deferd serve
  deferd serve --host 0.0.0.0 --port 8000 --data-dir /var/lib/deferd
  DEFERD_REDIS_URL=redis://:password@db.example:6379 deferd serve --workers 4

exit codes: 0 ended by SIGTERM, SIGHUP or Ctrl-C; 1 cannot serve: the port is in use, the store
refuses; 2 a wrong setting"""


@click.command(cls=Command, params=setting_options(), epilog=_EPILOG)
def serve(settings: dict[str, str]) -> int:
    """Run the service until SIGTERM, SIGHUP or Ctrl-C. Each setting is an option and an environment variable; the
    option takes precedence.
    """
    try:
        loaded = load_settings(settings)
        if loaded.redis_url is not None:
            parse_store_url(loaded.redis_url.get_secret_value())
    except SettingsError as error:
        return fail(*error.problems, code=exit_codes.USAGE)
    except StoreUrlError as error:
        return fail(problem("redis_url", "", wanted=str(error)), code=exit_codes.USAGE)
    from deferd.server import run  # after the settings: this import takes a second

    return run.run(loaded, version=version(), warnings=unknown_variables(os.environ))
