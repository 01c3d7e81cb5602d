"""`deferd push`: jobs that the service sends to a URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import EXIT_CODES, Command, CommandGroup, command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.options import connection_options, json_option, topic_argument

if TYPE_CHECKING:
    from deferd.client import Push, PushTarget

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 (an example)
_EPILOG = f"""examples:
  deferd push set orders.close https://hooks.example.com/close --secret {_SECRET}
  deferd push test orders.close
  deferd push get orders.close
  deferd push listen --secret {_SECRET}

`deferd push ACTION --help` shows the options of an action.

{EXIT_CODES}"""


@click.group(
    cls=CommandGroup, epilog=_EPILOG, subcommand_metavar="ACTION ...", options_metavar="", no_args_is_help=False
)
def push() -> None:
    """Have the service send the jobs of a topic to a URL, as signed requests."""


def _add(*examples: str, name: str) -> Callable[[Callable[..., int | None]], Command]:
    def add(function: Callable[..., int | None]) -> Command:
        made = command(*examples, name=name)(function)
        push.add_command(made)
        return made

    return add


@_add(
    f"deferd push set orders.close https://hooks.example.com/close --secret {_SECRET}",
    "deferd push set orders.close https://hooks.example.com/close --max-in-flight 50 --rate 100",
    name="set",
)
@topic_argument()
@click.argument("target", metavar="URL", help="where its jobs are sent")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="SECRET",
    envvar="DEFERD_PUSH_SECRET",
    help="signs the requests: whsec_ and base64; twice while it is rotated; without it the stored ones stay "
    "[DEFERD_PUSH_SECRET]",
)
@click.option("--target-timeout", type=values.duration, help="how long it may take, to 15m; default 30s")
@click.option("--max-in-flight", type=values.count_from_1, metavar="N", help="most requests at a time; default 10")
@click.option("--rate", type=float, metavar="N", help="most requests a second; default: no limit")
@click.option("--header", "headers", type=values.header, multiple=True, metavar="NAME=TEXT", help="a further header")
@click.option("--batch", is_flag=True, help="up to 100 jobs a request")
@json_option()
@connection_options
def set_(
    *,
    topic: str,
    target: str,
    secrets: tuple[str, ...],
    target_timeout: float | None,
    max_in_flight: int | None,
    rate: float | None,
    headers: tuple[tuple[str, str] | None, ...],
    batch: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Push the jobs of a topic to a URL. Replaces what was set before; nobody can pop them from then on."""
    with connection.open() as client:
        stored = client.set_push(
            topic,
            target,
            secrets or None,
            timeout=target_timeout,
            max_in_flight=max_in_flight,
            rate=rate,
            headers=dict(one for one in headers if one) or None,
            mode="batch" if batch else None,
        )
    _show(stored, None, as_json=as_json)


@_add("deferd push get orders.close", "deferd push get orders.close --json | jq .target.circuit", name="get")
@topic_argument()
@json_option()
@connection_options
def get(topic: str, as_json: bool, connection: Connection) -> None:
    """Show how the jobs of a topic are pushed, and the state of the target."""
    with connection.open() as client:
        stored = client.push(topic)
        target = client.topic(topic).push
    _show(stored, target, as_json=as_json)


@_add("deferd push remove orders.close", name="remove")
@topic_argument()
@json_option()
@connection_options
def remove(topic: str, as_json: bool, connection: Connection) -> None:
    """Stop pushing the jobs of a topic: consumers can pop them again."""
    with connection.open() as client:
        client.remove_push(topic)
    if as_json:
        output.json_line({"topic": topic, "removed": True})
    else:
        output.line(f"{topic} is not pushed any more")


@_add("deferd push test orders.close", name="test")
@topic_argument()
@json_option()
@connection_options
def test(topic: str, as_json: bool, connection: Connection) -> int:
    """Send a signed test to the target of a topic. Exit code 1 unless the status is 2xx."""
    with connection.open() as client:
        result = client.test_push(topic)
    if as_json:
        output.json_line(result.fields)
    elif result.status is None:
        output.line(f"no response after {output.span(result.took)}: {output.printable(result.error or '')}")
    else:
        shown = f": {output.printable(result.response)}" if result.response else ""
        output.line(f"status {result.status} after {output.span(result.took)}{shown}")
    return exit_codes.DONE if result.status is not None and 200 <= result.status < 300 else exit_codes.FAILED


@_add(
    f"deferd push listen --port 9000 --secret {_SECRET}",
    "deferd push listen --status 503 --retry-after 5",
    name="listen",
)
@click.option("--port", type=values.whole, default=9000, metavar="N", help="on this port of 127.0.0.1; default 9000")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="SECRET",
    envvar="DEFERD_PUSH_SECRET",
    help="verify requests with it, and refuse others; without any, nothing is verified [DEFERD_PUSH_SECRET]",
)
@click.option("--status", type=click.IntRange(200, 599), default=200, metavar="N", help="the response; default 200")
@click.option("--retry-after", type=values.whole, metavar="SECONDS", help="with this Retry-After")
@click.option("--count", type=values.count_from_1, metavar="N", help="end after so many requests")
@json_option()
def listen(
    *,
    port: int,
    secrets: tuple[str, ...],
    status: int,
    retry_after: int | None,
    count: int | None,
    as_json: bool,
) -> int:
    """A receiver for development: verify the requests of a service on this machine, print them, and respond."""
    from deferd.cli.topics.push_listener import Listener

    return Listener(
        port=port, secrets=secrets, status=status, retry_after_s=retry_after, most=count, as_json=as_json
    ).run()


def _show(stored: Push, target: PushTarget | None, *, as_json: bool) -> None:
    if as_json:
        output.json_line({**stored.fields, **({} if target is None else {"target": target.fields})})
        return
    facts = [
        ("topic", stored.topic),
        ("url", stored.url),
        ("secrets", str(stored.secret_count)),
        ("timeout", output.span(stored.timeout)),
        ("in flight at most", output.number(stored.max_in_flight)),
        ("a second at most", "no limit" if stored.rate is None else f"{stored.rate:g}"),
        ("headers", ", ".join(stored.header_names) or "-"),
        ("mode", stored.mode),
    ]
    if target is not None:
        until = "" if target.open_until is None else f" until {output.rfc3339(target.open_until)}"
        facts += [
            ("circuit", target.circuit.replace("_", " ") + until),
            ("failures in a row", output.number(target.failures)),
            ("in flight", output.number(target.in_flight)),
            ("last error", output.printable(target.last_error or "-")),
        ]
    output.show_facts(facts)
