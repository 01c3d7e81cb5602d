"""Calls of the API as commands that people can copy."""

from __future__ import annotations

import shlex
from typing import Any

import orjson

from deferd.console.browser_requests import forwarded_prefix, header, is_secure
from deferd.console.visit import Visit


def curl(visit: Visit, path: str, *, method: str | None = None, body: Any = None) -> str:
    """A call of `path` with its query, at the host that the browser asks for. A key is read from `$DEFERD_KEY`."""
    scheme = "https" if is_secure(visit.scope) else "http"
    host = header(visit.scope, b"host").decode("latin-1")
    parts = ["curl -sS"]
    if method is not None:
        parts.append(f"-X {method}")
    if visit.has_keys:
        parts.append('-H "Authorization: Bearer $DEFERD_KEY"')
    if body is not None:
        parts.append(f"--json {shlex.quote(orjson.dumps(body).decode())}")
    return " ".join([*parts, shlex.quote(f"{scheme}://{host}{forwarded_prefix(visit.scope)}{path}")])
