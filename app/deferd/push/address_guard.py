"""Keeps pushes away from addresses that are not public: aiohttp resolves names and opens its sockets here.

A name is checked after it was resolved, and the connection goes to the very addresses that were checked: the
DNS is not asked a second time. Each address is checked once more when its socket is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from deferd.contract.push_targets import AllowedTargets, IpAddress, TargetRefused

_RESOLVING_AT_ONCE = 64
Resolve = Callable[[str, int], Awaitable[Sequence[tuple[Any, ...]]]]
"""As `loop.getaddrinfo` returns it for a name and a port."""


class AddressRefused(OSError):
    """A target has an address to which nothing may be pushed."""


class SystemResolver:
    """Asks the resolver of the system, each name in a thread of its own.

    A name server that does not respond keeps the thread for many seconds. So the threads of the event loop stay free
    for other work, and the end of the process does not wait for such a thread.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_RESOLVING_AT_ONCE)

    async def __call__(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        """The addresses of a name. Raises OSError."""
        async with self._turns:
            found: asyncio.Future[Sequence[tuple[Any, ...]]] = asyncio.get_running_loop().create_future()
            threading.Thread(target=_resolve, args=(host, port, found), daemon=True, name="deferd-resolver").start()
            return await found


def _resolve(host: str, port: int, found: asyncio.Future[Sequence[tuple[Any, ...]]]) -> None:
    result: Sequence[tuple[Any, ...]] = ()
    error: Exception | None = None
    try:
        result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as failed:  # a label that is too long is a UnicodeError
        error = failed if isinstance(failed, OSError) else OSError(f"{host} is not a name")

    def tell() -> None:
        if not found.done():
            found.set_result(result) if error is None else found.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
        found.get_loop().call_soon_threadsafe(tell)


class GuardedResolver(AbstractResolver):
    """Resolves names; refuses one that has any address which is not allowed."""

    def __init__(self, allowed: AllowedTargets, resolve: Resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name, all checked.

        Raises:
            AddressRefused, OSError: there is none.
        """
        found: list[ResolveResult] = []
        for of, _, protocol, _, where in await self._resolve(host, port):
            if of not in (socket.AF_INET, socket.AF_INET6) or family not in (socket.AF_UNSPEC, of):
                continue
            address = _address(where)
            try:
                self._allowed.check_resolved(host.rstrip(".").lower(), address, port)
            except TargetRefused as refused:
                raise AddressRefused(f"{host} {refused}") from None
            found.append(
                ResolveResult(
                    hostname=host,
                    host=str(address),
                    port=port,
                    family=of,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if not found:
            raise OSError(f"{host} has no address")
        return found

    async def close(self) -> None:
        """Nothing to release."""


class GuardedSockets:
    """Makes the sockets of connections: the last check, for names and addresses alike."""

    def __init__(self, allowed: AllowedTargets) -> None:
        self._allowed = allowed

    def __call__(self, address_info: tuple[Any, ...]) -> socket.socket:
        """A socket for a connection to this address. Raises AddressRefused."""
        family, kind, protocol, _, where = address_info
        try:
            self._allowed.check_address(_address(where), where[1])
        except TargetRefused as refused:
            raise AddressRefused(f"the target {refused}") from None
        return socket.socket(family, kind, protocol)


def _address(where: Sequence[Any]) -> IpAddress:
    return ipaddress.ip_address(str(where[0]).partition("%")[0])
