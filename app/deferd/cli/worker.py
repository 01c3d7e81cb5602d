"""`worker`: runs a worker that a program declares."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Literal, cast

from deferd.cli import exit_codes, output
from deferd.cli.connection import SETTINGS, find, read_connection
from deferd.cli.exit_codes import UsageError
from deferd.server import logs
from deferd.worker import Worker

_LOG_FORMATS = ("console", "json")
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def work(given: argparse.Namespace) -> int:
    """Import the program, run its worker until it ends, and return the worker's exit code.

    The service is that of --url, else of DEFERD_URL, else of the program, else the default; the key likewise. The flags
    are given to the program as these variables, too, for other clients that it makes.
    """
    module_name, name = _target(given.worker)
    connection = read_connection(vars(given))  # so that a wrong value is refused before the program runs
    is_given = {setting: find(setting, vars(given), os.environ).source != "default" for setting in ("url", "key")}
    for setting in ("url", "key"):
        if getattr(given, setting) is not None:
            os.environ[SETTINGS[setting].variable] = getattr(given, setting)
    log_format = cast("Literal['console', 'json']", _choice("log_format", given, _LOG_FORMATS))
    logs.configure(log_format, _choice("log_level", given, _LOG_LEVELS))
    sys.path.insert(0, str(Path.cwd()))
    module = _imported(module_name)
    if module is None:
        return exit_codes.FAILED
    return _worker_of(module, module_name, name).run(
        url=connection.urls if is_given["url"] else None, key=connection.key if is_given["key"] else None
    )


def _target(text: str) -> tuple[str, str]:
    module_name, colon, name = text.partition(":")
    steps = [*module_name.split("."), *name.split(".")]
    if not colon or not all(step.isidentifier() for step in steps):
        hint = f": is {text.removesuffix('.py').replace('/', '.')}:worker meant?" if text.endswith(".py") else ""
        raise UsageError(f"MODULE:WORKER is {text!r}, but must be a module and a name in it, as shop.jobs:worker{hint}")
    return module_name, name


def _imported(module_name: str) -> Any | None:
    """The module; None when it fails by itself, of which it is told as Python does."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r}, neither in {Path.cwd()} nor where Python looks for modules"
            ) from None
        _tell_of(module_name, error)
    except Exception as error:  # noqa: BLE001 (the program may raise anything)
        _tell_of(module_name, error)
    return None


def _tell_of(module_name: str, error: Exception) -> None:
    """Show where in the program it went wrong: the way to it through this command says nothing."""
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


def _choice(name: str, given: argparse.Namespace, known: tuple[str, ...]) -> str:
    """A flag, else its variable, which the service has as well, else the first default of the service."""
    variable = f"DEFERD_{name.upper()}"
    text = getattr(given, name) or os.environ.get(variable, "").lower() or {"log_level": "info"}.get(name, known[0])
    if text not in known:
        flag = "--" + name.replace("_", "-")
        raise UsageError(f"{flag} ({variable}) is {text!r}, but must be one of {', '.join(known)}")
    return str(text)
