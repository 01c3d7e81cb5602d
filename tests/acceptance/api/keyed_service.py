"""A service with keys: the keys file, and calls with its keys through either entry point."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from deferd.api.auth.api_keys import hash_of
from deferd.contract.scopes import Scope
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import WireResponse, connected, request

Record = dict[str, Any]


class KeysFile:
    """A keys file that can be rewritten; `tokens` has the token of each name that was ever in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens: dict[str, str] = {}
        self._entries: dict[str, str] = {}

    def add(self, name: str, *scopes: str, topics: tuple[str, ...] = ("*",), more: str = "") -> None:
        """Write a key into the file."""
        token = self.tokens.setdefault(name, secrets.token_urlsafe(32))
        self._entries[name] = (
            f'[[key]]\nname = "{name}"\nhash = "{hash_of(token)}"\n'
            f"scopes = {json.dumps(scopes)}\ntopics = {json.dumps(topics)}\n{more}\n"
        )
        self.write()

    def remove(self, name: str) -> None:
        """Remove a key from the file."""
        del self._entries[name]
        self.write()

    def text(self) -> str:
        """The content of the file."""
        return "\n".join(self._entries.values())

    def write(self, more: str = "") -> None:
        """Rewrite the file atomically, with `more` after the keys."""
        new = self.path.with_name("new")
        new.write_text(self.text() + more, encoding="utf-8")
        new.replace(self.path)


def keys_of_every_kind(path: Path) -> KeysFile:
    """One key for each scope, each for all topics, named like its scope."""
    keys = KeysFile(path)
    for scope in Scope:
        keys.add(scope.value, scope.value)
    return keys


async def call(
    service: ServiceProcess,
    method: str,
    path: str,
    body: Any = None,
    *headers: str,
    token: str | None = None,
    through_asgi: bool = False,
) -> WireResponse:
    """The response to one request on a connection of its own."""
    if token is not None:
        headers = (*headers, f"Authorization: Bearer {token}")
    async with connected(service.port) as wire:
        wire.send(request(method, path, body, *headers, through_asgi=through_asgi))
        return await wire.read_response()


def audit_lines(service: ServiceProcess) -> list[Record]:
    """The audit log of a service that logs JSON, in order."""
    records = [json.loads(line) for line in service.lines if line.startswith("{")]
    return [record for record in records if record["logger"] == "deferd.audit"]
