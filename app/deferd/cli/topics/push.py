"""`deferd push`: jobs that the service sends to a URL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command, command_group
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import Decorator, client_command, json_option, topic_argument
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from deferd.client import Client, Push, PushTarget

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 (an example)
_BODY_MAX_BYTES = 64 * 1024 * 1024
_PORT_MAX = 65_535
_WAIT_S = 30.0
"""How long a client may take to send a request."""


@command_group(
    f"deferd push set orders.close https://hooks.example.com/close --secret {_SECRET}",
    "deferd push test orders.close",
    "deferd push get orders.close",
    f"deferd push listen --secret {_SECRET}",
    name="push",
)
def push() -> None:
    """Have the service send the jobs of a topic to a URL, as signed requests."""


def _secret_option(about: str) -> Decorator:
    return click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="SECRET",
        envvar="DEFERD_PUSH_SECRET",
        help=f"{about} [DEFERD_PUSH_SECRET]",
    )


@client_command(
    f"deferd push set orders.close https://hooks.example.com/close --secret {_SECRET}",
    "deferd push set orders.close https://hooks.example.com/close --max-in-flight 50 --rate 100",
    group=push,
    name="set",
)
@topic_argument()
@click.argument("target", metavar="URL", help="where its jobs are sent")
@_secret_option("signs the requests: whsec_ and base64; twice while it is rotated; without it the stored ones stay")
@click.option("--target-timeout", type=values.duration, help="how long it may take, to 15m; default 30s")
@click.option("--max-in-flight", type=values.count_from_1, metavar="N", help="most requests at a time; default 10")
@click.option("--rate", type=float, metavar="N", help="most requests a second; default: no limit")
@click.option("--header", "headers", type=values.header, multiple=True, metavar="NAME=TEXT", help="a further header")
@click.option("--batch", is_flag=True, help="up to 100 jobs a request")
def set_(
    *,
    topic: str,
    target: str,
    secrets: tuple[str, ...],
    target_timeout: float | None,
    headers: tuple[tuple[str, str] | None, ...],
    batch: bool,
    client: Client,
    as_json: bool,
    **options: Any,
) -> None:
    """Push the jobs of a topic to a URL. Replaces what was set before; nobody can pop them from then on."""
    options |= {"timeout": target_timeout, "mode": "batch" if batch else None}
    options["headers"] = dict(one for one in headers if one) or None
    _show(client.set_push(topic, target, secrets or None, **options), None, as_json=as_json)


@client_command("deferd push get orders.close", "deferd push get orders.close --json | jq .target.circuit", group=push)
@topic_argument()
def get(topic: str, client: Client, as_json: bool) -> None:
    """Show how the jobs of a topic are pushed, and the state of the target."""
    _show(client.push(topic), client.topic(topic).push, as_json=as_json)


@client_command("deferd push remove orders.close", group=push)
@topic_argument()
def remove(topic: str, client: Client, as_json: bool) -> None:
    """Stop pushing the jobs of a topic: consumers can pop them again."""
    client.remove_push(topic)
    output.json_or_line({"topic": topic, "removed": True}, f"{topic} is not pushed any more", as_json=as_json)


@client_command("deferd push test orders.close", group=push)
@topic_argument()
def test(topic: str, client: Client, as_json: bool) -> int:
    """Send a signed test to the target of a topic. Exit code 1 unless the status is 2xx."""
    result = client.test_push(topic)
    took = output.span(result.took)
    if result.status is None:
        text = f"no response after {took}: {result.error or ''}"
    else:
        text = f"status {result.status} after {took}" + (f": {result.response}" if result.response else "")
    output.json_or_line(result.fields, output.printable(text), as_json=as_json)
    return exit_codes.DONE if result.status is not None and 200 <= result.status < 300 else exit_codes.FAILED


@command(
    f"deferd push listen --port 9000 --secret {_SECRET}",
    "deferd push listen --status 503 --retry-after 5",
    group=push,
)
@click.option("--port", type=values.whole, default=9000, metavar="N", help="on this port of 127.0.0.1; default 9000")
@_secret_option("verify requests with it, and refuse others; without any, nothing is verified")
@click.option("--status", type=click.IntRange(200, 599), default=200, metavar="N", help="the response; default 200")
@click.option("--retry-after", type=values.whole, metavar="SECONDS", help="with this Retry-After")
@click.option("--count", type=values.count_from_1, metavar="N", help="end after so many requests")
@json_option()
def listen(retry_after: int | None, count: int | None, **options: Any) -> int:
    """A receiver for development: verify the requests of a service on this machine, print them, and respond."""
    return _Listener(retry_after_s=retry_after, most=count, **options).run()


def _show(stored: Push, target: PushTarget | None, *, as_json: bool) -> None:
    fields = stored.fields if target is None else {**stored.fields, "target": target.fields}
    output.json_or_facts(fields, _facts(stored, target), as_json=as_json)


def _facts(stored: Push, target: PushTarget | None) -> Iterator[tuple[str, str]]:
    yield "topic", stored.topic
    yield "url", stored.url
    yield "secrets", str(stored.secret_count)
    yield "timeout", output.span(stored.timeout)
    yield "in flight at most", output.number(stored.max_in_flight)
    yield "a second at most", "no limit" if stored.rate is None else f"{stored.rate:g}"
    yield "headers", ", ".join(stored.header_names) or "-"
    yield "mode", stored.mode
    if target is not None:
        until = "" if target.open_until is None else f" until {format_instant(target.open_until)}"
        yield "circuit", target.circuit.replace("_", " ") + until
        yield "failures in a row", output.number(target.failures)
        yield "in flight", output.number(target.in_flight)
        yield "last error", output.printable(target.last_error or "-")


class _Listener:
    """An HTTP server on this machine, for development only: it verifies and prints requests.

    All get the same response, except that a forged one gets 401. Raises UsageError when it cannot listen, or a secret
    is none.
    """

    def __init__(
        self,
        *,
        port: int,
        secrets: Sequence[str],
        status: int,
        retry_after_s: int | None,
        most: int | None,
        as_json: bool,
    ) -> None:
        from http.server import HTTPServer  # the other commands do not need these

        from deferd.contract.webhook_signature import BadSecret, secret_key

        try:
            for secret in secrets:
                secret_key(secret)
        except BadSecret as error:
            raise UsageError(f"--secret {error}") from None
        if not 0 <= port <= _PORT_MAX:
            raise UsageError(f"--port is {port}, but must be from 0 to {_PORT_MAX}")
        self._secrets, self._status, self._retry_after_s = secrets, status, retry_after_s
        self._most, self._as_json = most, as_json
        self._received = 0
        try:
            self._server = HTTPServer(("127.0.0.1", port), _handler_of(self))
        except OSError as error:
            raise UsageError(f"cannot listen on port {port} of 127.0.0.1: {error}") from None

    def run(self) -> int:
        """Serve until Ctrl-C, or until the wanted number of requests has come."""
        port = self._server.server_address[1]
        verified = "verifying signatures" if self._secrets else "WITHOUT verifying signatures"
        output.complain(f"listening on http://127.0.0.1:{port}, {verified}; end with Ctrl-C")
        with self._server:
            while self._most is None or self._received < self._most:
                self._server.handle_request()
        return exit_codes.DONE

    def respond(self, headers: dict[str, str], body: bytes, path: str) -> tuple[int, dict[str, str]]:
        """Print a request; returns the status and the headers of the response."""
        from deferd.contract.webhook_signature import BadSignature, verify  # as in __init__

        self._received += 1
        problem = None
        if self._secrets:
            try:
                verify(self._secrets, headers, body, time.time())
            except BadSignature as error:
                problem = str(error)
        self._print(headers, body, path, problem)
        if problem is not None:
            return 401, {}
        return self._status, {} if self._retry_after_s is None else {"retry-after": str(self._retry_after_s)}

    def _print(self, headers: dict[str, str], body: bytes, path: str, problem: str | None) -> None:
        facts: dict[str, Any] = {
            "path": path,
            "topic": headers.get("deferd-topic"),
            "id": headers.get("deferd-job-id"),
            "attempt": headers.get("deferd-attempt"),
            "webhook_id": headers.get("webhook-id"),
            "verified": None if not self._secrets else problem is None,
        }
        if problem is not None:
            facts["problem"] = problem
        if self._as_json:
            output.json_line({**facts, "body": _json_or_text(body)})
            return
        state = {None: "not verified", True: "verified", False: f"REFUSED: {problem}"}[facts["verified"]]
        shown = [str(facts[name]) for name in ("topic", "id") if facts[name]]
        attempt = f" attempt {facts['attempt']}" if facts["attempt"] else ""
        text = output.printable(body.decode(errors="replace"))
        output.line(f"{' '.join(shown) or path}{attempt} ({state}): {text}")


def _json_or_text(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _handler_of(listener: _Listener) -> type[BaseHTTPRequestHandler]:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        """Reads one request and writes its response."""

        timeout = _WAIT_S

        def do_POST(self) -> None:
            """A push."""
            length = self.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > _BODY_MAX_BYTES:
                self.send_error(411)
                return
            body = self.rfile.read(int(length))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, fields = listener.respond(headers, body, self.path)
            self.send_response(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *_arguments: Any) -> None:
            """Print nothing: the request is printed already."""

    return Handler
