"""The command `system`: what the service runs on, and what the key allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deferd.cli.framework import output
from deferd.cli.framework.options import client_command

if TYPE_CHECKING:
    from deferd.client import Client


@client_command("deferd system", "deferd system --json | jq .store.memory_bytes", json="print JSON")
def system(client: Client, as_json: bool) -> None:
    """Show the service's version, its store and timers, its settings, and what your key allows."""
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
