"""`deferd doctor`: whether a program with these settings could use the service from here, and what is in its way."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import command, sentence
from deferd.cli.framework.options import Connection, connection_options, json_option
from deferd.contract.errors import DeferdError, Forbidden
from deferd.version import VERSION

if TYPE_CHECKING:
    from deferd.client import Client
    from deferd.contract.operations.system import OwnKey, StoreFacts, System

_CERTIFICATE_S: Final = timedelta(days=14)
_CLOCK_S: Final = 1.0
"""More than that, and instants that a program computes by its own clock are noticeably off."""
_MEMORY_PART: Final = 0.8
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CODES: Final = {"ok": exit_codes.DONE, "skipped": exit_codes.DONE, "warning": exit_codes.FINDINGS}


class Check(NamedTuple):
    """What was found. `code` is the exit code of a failure."""

    check: str
    status: Literal["ok", "warning", "failed", "skipped"]
    text: str
    code: int = exit_codes.FINDINGS

    @property
    def exit_code(self) -> int:
        """The exit code that it asks for."""
        return _CODES.get(self.status, self.code)


@command("deferd doctor", "DEFERD_URL=https://jobs.example.com DEFERD_KEY=... deferd doctor --json")
@json_option()
@connection_options
def doctor(connection: Connection, as_json: bool) -> int:
    """Check whether the service can be used from here: its URL and certificate, your key, both versions and clocks, the
    store, and the limits. A line for each check. The exit code is 1 when the service cannot be reached, 5 when it does
    not take the key, 6 when something else is wrong.
    """
    worst = exit_codes.DONE
    for url in connection.url:  # replicas: each by itself
        for found in _checks(replace(connection, url=[url], retry_for=0.0), url):
            if as_json:
                output.json_line({"url": url, **found._asdict()} | {"code": found.exit_code})
            else:
                output.line(output.printable(f"{found.status:<8} {found.check:<8} {found.text}"))
            worst = found.exit_code if worst in {exit_codes.DONE, exit_codes.FINDINGS} and found.exit_code else worst
    return worst


def _checks(connection: Connection, url: str) -> Iterator[Check]:
    with connection.open() as client:
        key: OwnKey | None = None
        try:
            key = client.key()
        except Forbidden as error:  # a key that may only put may well be what the program needs
            of_key = Check("key", "ok", str(error))
        except DeferdError as error:
            code = exit_codes.of_error(error)
            if code != exit_codes.NOT_ALLOWED:
                yield Check("url", "failed", sentence(error), exit_codes.FAILED)
                return
            of_key = Check("key", "failed", sentence(error), code)
        else:
            of_key = _key(key)
        yield _url(connection, url)
        if url.startswith("https:"):
            yield _certificate(connection, url)
        yield of_key
        if of_key.status != "failed":
            yield _clock(connection, url, "t" if key is None else key.topics[0].replace("*", "t"))
            yield from _of_service(client, key)


def _of_service(client: Client, key: OwnKey | None) -> Iterator[Check]:
    try:
        system = client.system()
    except Forbidden as error:
        yield Check("version", "skipped", f"client {VERSION}; {error}")
        is_ready = client.is_ready()
        yield Check("store", "ok" if is_ready else "failed", "it responds" if is_ready else "the service is not ready")
        settings: dict[str, Any] = {}
    except DeferdError as error:
        yield Check("store", "failed", sentence(error))
        return
    else:
        yield _version(system.version)
        yield _store(system, system.store)
        settings = system.settings
    yield _limits(settings, key)


def _url(connection: Connection, url: str) -> Check:
    is_plain = url.startswith("http:") and (urlsplit(url).hostname or "") not in _LOOPBACK
    if is_plain and connection.key is not None:
        return Check("url", "warning", f"{url} responds, and the key goes there unencrypted: use https")
    return Check("url", "ok", f"{url} responds")


def _certificate(connection: Connection, url: str) -> Check:
    from deferd.client.transport import default_context

    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        with (
            socket.create_connection((host, parts.port or 443), connection.timeout) as plain,
            default_context(connection.ca_file).wrap_socket(plain, server_hostname=host) as connected,
        ):
            version, certificate = connected.version(), connected.getpeercert() or {}
    except OSError as error:
        return Check("tls", "failed", str(error))
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    text = f"{version}, the certificate ends {ends:%Y-%m-%d} ({output.from_now(ends)})"
    return Check("tls", "warning" if ends - datetime.now(UTC) < _CERTIFICATE_S else "ok", text)


def _key(key: OwnKey) -> Check:
    if key.name is None:
        return Check("key", "ok", "none is needed: the service has no keys")
    return Check("key", "ok", f"{key.name} may {', '.join(key.scopes)} in topics {', '.join(key.topics)}")


def _clock(connection: Connection, url: str, topic: str) -> Check:
    """Compare the store's clock, which responses tell to requests that would change something. This one does not."""
    from deferd.client.blocking_transport import BlockingTransport, run_blocking
    from deferd.client.scheduling import preview_schedule
    from deferd.client.transport import HttpSettings
    from deferd.contract.clocks import epoch_s, monotonic_s

    settings = HttpSettings(
        url,
        timeout_s=connection.timeout,
        key=connection.key,
        connections=1,
        tls=None,
        ca_file=connection.ca_file,
        proxy=None,
    )
    transport = BlockingTransport(settings)
    began_s = monotonic_s()
    try:
        run_blocking(transport.exchange(url, preview_schedule({"topic": topic, "every": 3600}, count=1)))
    except DeferdError as error:
        return Check("clock", "failed", sentence(error))
    finally:
        run_blocking(transport.close())
    ended_s = monotonic_s()
    if not settings.clock.is_known:
        return Check("clock", "skipped", "only a key with the scope `read` is shown the store's clock")
    doubt_s = ended_s - began_s
    ahead_s = settings.clock.at(ended_s) / 1000 - epoch_s()
    which = "ahead of" if ahead_s > 0 else "behind"
    text = f"the store's clock is {abs(ahead_s):.3f} s {which} this machine's, give or take {doubt_s:.3f} s"
    return Check("clock", "warning" if abs(ahead_s) - doubt_s > _CLOCK_S else "ok", text)


def _version(service: str) -> Check:
    is_same = service.split(".")[:2] == VERSION.split(".")[:2]
    return Check("version", "ok" if is_same else "warning", f"client {VERSION}, service {service}")


def _store(system: System, store: StoreFacts) -> Check:
    used, most = store.memory_bytes, store.memory_limit_bytes
    text = f"{store.server or 'unknown'}{' (embedded)' if store.embedded else ''}, durability {store.durability}"
    if used is not None:
        text += f", {used:,} {f'of {most:,} ' if most else ''}bytes"
    still = [str(shard.shard) for shard in system.shards if not shard.timer]
    if system.unreadable_shards or still:
        unreadable = ", ".join(map(str, system.unreadable_shards))
        why = (
            f"shards that cannot be read: {unreadable}" if unreadable else f"shards without a timer: {', '.join(still)}"
        )
        return Check("store", "failed", f"{text}; {why}")
    if most and used and used > _MEMORY_PART * most:
        return Check("store", "warning", f"{text}: its memory is nearly full")
    if store.why_not_fsync is not None:
        return Check("store", "warning", f"{text}: {store.why_not_fsync}")
    return Check("store", "ok", text)


def _limits(settings: dict[str, Any], key: OwnKey | None) -> Check:
    limits: dict[str, Any] = {
        name: settings[name] for name in ("max_body_bytes", "max_connections") if name in settings
    }
    if key is not None:
        limits |= key.limits
        if key.requests_per_second is not None:
            limits["requests_per_second"] = key.requests_per_second
    if not limits:
        return Check("limits", "skipped", "they are not known to this key")
    return Check("limits", "ok", ", ".join(f"{name} {output.number(value)}" for name, value in limits.items()))
