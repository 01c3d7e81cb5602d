"""The command `system`: what the service runs on, and what the key allows."""

from __future__ import annotations

from typing import Any

from deferd.cli.framework import output
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.options import connection_options, json_option


@command("deferd system", "deferd system --json | jq .store.memory_bytes")
@json_option("print JSON")
@connection_options
def system(as_json: bool, connection: Connection) -> None:
    """Show the service's version, its store and timers, its settings, and what your key allows."""
    with connection.open() as client:
        found, key = client.system(), client.key()
    if as_json:
        output.json_line({**found.fields, "key": key.fields})
        return
    store = found.store
    memory = store.memory_bytes
    facts: dict[str, Any] = {
        "version": f"deferd {found.version}, Python {found.process.python}",
        "store": f"{store.server or 'unknown'}{' (embedded)' if store.embedded else ''}",
        "memory": None if memory is None else f"{memory:,} bytes",
        "durability": store.durability + (f" ({store.why_not_fsync})" if store.why_not_fsync else ""),
        "replicas": store.replicas,
        "timers": f"{sum(one.timer for one in found.shards)} of {found.shard_count} shards",
        "key": key.name or "none: the service has no keys",
        "scopes": ", ".join(key.scopes),
        "topics": ", ".join(key.topics),
        **found.settings,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            output.line(f"{name:<{width}}  {output.printable(str(value))}")
