"""The receiver of `deferd push listen`: an HTTP server on this machine, for development only."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.exit_codes import UsageError
from deferd.contract.webhook_signature import BadSecret, BadSignature, secret_key, verify

_BODY_MAX_BYTES = 64 * 1024 * 1024
_PORT_MAX = 65_535
_WAIT_S = 30.0
"""How long a client may take to send a request."""


class Listener:
    """Verifies and prints requests. All get the same response, except that a forged one gets 401.

    Raises UsageError when it cannot listen, or a secret is none.
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


def _handler_of(listener: Listener) -> type[BaseHTTPRequestHandler]:
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
