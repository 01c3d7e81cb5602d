"""`deferd relay`: sends the outbox of a database to the service."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

import click

from deferd.cli.framework import exit_codes, values
from deferd.cli.framework.command import command
from deferd.cli.framework.options import SETTINGS, log_options
from deferd.cli.outbox.outbox import checked_url, url_argument
from deferd.contract.limits import ID_PATTERN
from deferd.stop_signals import StopSignals


def _name(text: str) -> str:
    if not re.fullmatch(ID_PATTERN, text):
        raise click.BadParameter(f"{text!r} does not have the form of a job id")
    return text


@command(
    "deferd relay postgresql://relay@localhost/shop --url http://deferd:8000",
    "DEFERD_OUTBOX_URL=postgresql://relay:PASSWORD@db/shop deferd relay --log-format json",
)
@url_argument
@click.option("--name", type=_name, metavar="NAME", help="its name in the console; default host name and process id")
@click.option(
    "--full-for",
    type=values.duration,
    default="10m",
    metavar="DURATION",
    help="how long rows wait for a topic that is full, until they are refused; default 10m",
)
@log_options
@SETTINGS["url"].option("service_url")
@SETTINGS["key"].option("key")
@SETTINGS["ca_file"].option("ca_file")
def relay(
    *,
    url: str | None,
    name: str | None,
    full_for: float,
    log_format: Literal["console", "json"],
    log_level: str,
    service_url: list[str],
    key: str | None,
    ca_file: str | None,
) -> int:
    """Send what transactions have put into the outbox of the database to the service, until SIGTERM, SIGHUP or Ctrl-C.
    Of several relays of a database one works, and another one takes over when it ends. The outbox is made by `deferd
    outbox init`.
    """
    from deferd.outbox.relay import Relay
    from deferd.outbox.sending import HttpService
    from deferd.server import logs

    database_url = checked_url(url)
    logs.configure(log_format, log_level)

    async def run() -> None:
        stop = asyncio.Event()
        StopSignals().on_stop = stop.set
        service = HttpService(service_url, key=key, ca_file=ca_file)
        await Relay(database_url, service, name=name, full_for_s=full_for).run(stop)

    asyncio.run(run())
    return exit_codes.DONE
