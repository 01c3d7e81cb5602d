"""`deferd worker`: runs a worker that a program declares."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import command
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import SETTINGS, log_options
from deferd.server import logs
from deferd.worker import Worker


@command(
    "deferd worker shop.jobs:worker", "DEFERD_URL=http://deferd:8000 deferd worker shop.jobs:worker --log-format json"
)
@click.argument("worker", metavar="MODULE:WORKER", help="a module, found from the current directory, and a name in it")
@log_options
@SETTINGS["url"].option("url")
@SETTINGS["key"].option("key")
@SETTINGS["ca_file"].option("ca_file")
@click.pass_context
def worker(
    ctx: click.Context,
    *,
    worker: str,
    log_format: Literal["console", "json"],
    log_level: str,
    url: list[str],
    key: str | None,
    ca_file: str | None,
) -> int:
    """Import MODULE, with the current directory on the path, and run its deferd.Worker WORKER until SIGTERM, SIGHUP or
    Ctrl-C. --url, else DEFERD_URL, takes precedence over the URL in the program, and so does the key. The program gets
    the options as these variables, for other clients that it makes.
    """
    module_name, name = _target(worker)
    for setting, value in (("url", ",".join(url)), ("key", key), ("ca_file", ca_file)):
        if value is not None and ctx.get_parameter_source(setting) is ParameterSource.COMMANDLINE:
            os.environ[SETTINGS[setting].variable] = value
    logs.configure(log_format, log_level)
    sys.path.insert(0, str(Path.cwd()))
    module = _imported(module_name)
    if module is None:
        return exit_codes.FAILED
    is_explicit = ctx.get_parameter_source("url") is not ParameterSource.DEFAULT
    return _worker_of(module, module_name, name).run(url=url if is_explicit else None, key=key)


def _target(text: str) -> tuple[str, str]:
    module_name, colon, name = text.partition(":")
    steps = [*module_name.split("."), *name.split(".")]
    if not colon or not all(step.isidentifier() for step in steps):
        hint = f": did you mean {text.removesuffix('.py').replace('/', '.')}:worker?" if text.endswith(".py") else ""
        raise UsageError(
            f"MODULE:WORKER is {text!r}, but must be a module and a name in it, such as shop.jobs:worker{hint}"
        )
    return module_name, name


def _imported(module_name: str) -> Any | None:
    """The module; None when importing it fails, which is reported with a traceback."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r}, neither in {Path.cwd()} nor where Python looks for modules"
            ) from None
        _report(module_name, error)
    except Exception as error:  # noqa: BLE001 (the program may raise anything)
        _report(module_name, error)
    return None


def _report(module_name: str, error: Exception) -> None:
    """Print the traceback of the program alone, without the frames of this command."""
    at = error.__traceback__
    while at is not None and ("importlib" in at.tb_frame.f_code.co_filename or at.tb_frame.f_globals is globals()):
        at = at.tb_next
    traceback.print_exception(type(error), error, at)
    output.complain(f"module {module_name} cannot be imported: {type(error).__name__}: {error}")


def _worker_of(module: Any, module_name: str, name: str) -> Worker:
    found: Any = module
    for step in name.split("."):
        if not hasattr(found, step):
            workers = [known for known, value in vars(module).items() if isinstance(value, Worker)]
            has = f"; it has {', '.join(workers)}" if workers else "; it has no deferd.Worker"
            raise UsageError(f"module {module_name} has no {name!r}{has}")
        found = getattr(found, step)
    if not isinstance(found, Worker):
        raise UsageError(f"{module_name}:{name} is of type {type(found).__name__}, but must be a deferd.Worker")
    if not found.topics:
        raise UsageError(f"{module_name}:{name} has no handler: declare one with @{name}.handler(TOPIC)")
    return found
