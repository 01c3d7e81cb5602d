"""The self-test at start: permissions, behaviour, and servers that only resemble Valkey or Redis."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from deferd.store.connection import connect
from deferd.store.preflight import StoreRefused, check, run_self_test
from tests.in_thread import in_thread
from tests.integration.store.store_rights import documented_permissions
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.proxy_server import PIECE_BYTES, ProxyServer, forward

_INFO = re.compile(rb"\$(\d+)\r\n(?=# Server\r\n)")


class InfoProxy(ProxyServer):
    """Applies `rewrite` to each reply to INFO and forwards all else unchanged."""

    def __init__(self, port: int, rewrite: Callable[[str], str]) -> None:
        super().__init__("127.0.0.1", port)
        self._rewrite = rewrite
        self.rewritten = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def relay(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        return forward(client[0], server[1]), self._forward_replies(server[0], client[1])

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        while piece := await reader.read(PIECE_BYTES):
            held += piece
            info = _INFO.search(held)
            if info is not None:
                end = info.end() + int(info[1])
                if len(held) < end:
                    continue
                text = self._rewrite(held[info.end() : end].decode()).encode()
                held = held[: info.start()] + b"$%d\r\n" % len(text) + text + held[end:]
                self.rewritten += 1
            writer.write(held)
            await writer.drain()
            held = b""


def info_proxy(port: int, rewrite: Callable[[str], str]) -> AbstractContextManager[InfoProxy]:
    """A proxy that runs in a thread until the end of the block."""
    return in_thread(InfoProxy(port, rewrite))


def with_server_section(lines: str) -> Callable[[str], str]:
    """A rewrite that replaces the section Server with these lines and keeps the other sections."""
    section = "# Server\r\n" + "".join(f"{line}\r\n" for line in lines.split())

    def rewrite(info: str) -> str:
        _, blank, others = info.partition("\r\n\r\n")
        return section + blank + others

    return rewrite


OTHER_PRODUCTS = {
    # The INFO of each, reduced to the relevant fields.
    "kvrocks": "version:2.11.1 kvrocks_version:2.11.1 redis_version:7.0.0 git_sha1:0 gcc_version:12",
    "dragonfly": "redis_version:7.4.0 dragonfly_version:df-v1.40.1 arch_bits:64 executable:dragonfly",
    "garnet": "garnet_version:1.0.60 os:Unix redis_version:7.4.3 multiplexing_api:epoll",
    "keydb": "redis_version:7.3.4 redis_git_sha1:7e7e5e57 executable:/data/keydb-server",
    "redict": "redis_version:7.2.4 redict_version:7.3.0 redis_git_sha1:0 redis_build_id:1 redis_mode:standalone",
    "upstash": "upstash_version:1.11.0 redis_version:7.2.6 redis_mode:standalone",
    "other": "redis_version:7.0.0 server_name:other redis_build_id:1 redis_mode:standalone",
    "INFO has none of": "redis_version:7.0.0 redis_mode:standalone",
}  # fmt: skip
MANAGED = {
    "elasticache": "redis_version:7.0.7 redis_git_sha1:0 redis_build_id:0 gcc_version:0.0.0 executable:-",
    "few fields": "redis_version:7.0.15 redis_build_id:0",
    "valkey without its name": "redis_version:7.2.4 valkey_version:8.0.1",
    "redis enterprise": "redis_version:7.4.0 rlec_version:7.8.2-34 redis_mode:standalone",
}  # fmt: skip
COMMANDS = sorted(set(re.findall(r"try\('([A-Z]+)'", (files("deferd.store") / "lua" / "self_test.lua").read_text())))


async def refusal(url: str, *, unsupported: bool = False) -> str:
    store = await connect(url, timeout_s=5)
    try:
        with pytest.raises(StoreRefused) as caught:
            await check(store, shards=1, exclusive=True, unsupported=unsupported)
    finally:
        await store.close()
    return str(caught.value)


async def accepted(url: str, *, unsupported: bool = False) -> None:
    store = await connect(url, timeout_s=5)
    try:
        await check(store, shards=1, exclusive=True, unsupported=unsupported)
    finally:
        await store.close()


def user_url(server: StoreServer, *rules: str) -> str:
    """The URL of a user with all permissions that deferd needs, changed by `rules`."""
    server.command("ACL", "SETUSER", "shop", "reset", "on", ">word", "~deferd:*", "&deferd:*", "+@all", *rules)
    return server.url.replace("redis://", "redis://shop:word@")


async def test_the_self_test_leaves_nothing_behind(server: StoreServer) -> None:
    store = await connect(server.url, timeout_s=5)
    found = await run_self_test(store)
    await store.close()

    assert found == ((), ())
    assert server.command("KEYS", "*") == []


async def test_all_missing_permissions_are_named_with_what_grants_them(server: StoreServer) -> None:
    sentence = await refusal(user_url(server, "-time", "-zadd", "-publish", "-fcall", "-info"))

    assert "the store's user lacks the permissions" in sentence
    assert sentence.endswith("ACL SETUSER <user> +fcall +info +publish +time +zadd")


@pytest.mark.parametrize(
    ("rules", "granted"),
    [
        (["-eval"], "+eval"),
        (["-function|load"], "+function|load"),
        (["-function|list", "-function|delete"], "+function|delete +function|list"),
        (["-subscribe"], "+subscribe"),
        (["resetkeys", "~shop:*"], "~deferd:*"),
        (["resetchannels"], "&deferd:*"),
    ],
)
async def test_missing_permissions_outside_scripts_are_named_too(
    server: StoreServer, rules: list[str], granted: str
) -> None:
    assert (await refusal(user_url(server, *rules))).endswith(f"ACL SETUSER <user> {granted}")


async def test_each_command_that_the_user_may_not_run_is_named(server: StoreServer) -> None:
    for command in COMMANDS:
        sentence = await refusal(user_url(server, f"-{command}"))
        assert sentence.endswith(f"ACL SETUSER <user> +{command.lower()}"), sentence


@pytest.mark.usefixtures("older_redis")
async def test_permissions_are_named_on_a_redis_that_does_not_name_them_in_scripts(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "r") as server:
        await accepted(server.url)
        assert (await refusal(user_url(server, "-time", "-zadd"))).endswith("ACL SETUSER <user> +time +zadd")
        assert (await refusal(user_url(server, "resetchannels"))).endswith("ACL SETUSER <user> &deferd:*")


async def test_a_renamed_command_is_named(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", lines=['rename-command ZMSCORE ""']) as server:
        assert "it has no command ZMSCORE" in await refusal(server.url)


async def test_a_server_that_behaves_differently_is_refused_even_as_unsupported(tmp_path: Path) -> None:
    lines = ["rename-command ZPOPMIN KEPT", "rename-command ZPOPMAX ZPOPMIN", "rename-command KEPT ZPOPMAX"]
    with StoreServer(tmp_path / "v", lines=lines) as server:
        for unsupported in (False, True):
            sentence = await refusal(server.url, unsupported=unsupported)
            assert "does not behave like Valkey and Redis" in sentence
            assert "ZPOPMIN returned {" in sentence


@pytest.mark.parametrize("name", OTHER_PRODUCTS)
async def test_another_product_is_refused_with_the_reason_unless_it_is_allowed(
    server: StoreServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with info_proxy(server.port, with_server_section(OTHER_PRODUCTS[name])) as proxy:
        sentence = await refusal(proxy.url)
        assert "is not Valkey or Redis" in sentence
        assert name in sentence
        assert "--unsupported-store" in sentence
        with caplog.at_level(logging.WARNING):
            await accepted(proxy.url, unsupported=True)
        assert proxy.rewritten >= 2
    assert "is not Valkey or Redis" in caplog.text
    assert "own risk" in caplog.text


@pytest.mark.parametrize("name", MANAGED)
async def test_a_managed_redis_that_hides_fields_is_accepted(server: StoreServer, name: str) -> None:
    with info_proxy(server.port, with_server_section(MANAGED[name])) as proxy:
        await accepted(proxy.url)
        assert proxy.rewritten >= 2


@pytest.mark.slow
async def test_every_primary_of_a_cluster_is_tested(tmp_path: Path) -> None:
    with ClusterSet(tmp_path) as cluster:
        for master in cluster.masters:
            permissions = (*documented_permissions(), "+cluster|slots", "+command")
            master.command("ACL", "SETUSER", "shop", "on", ">word", *permissions)
        url = cluster.url.replace("//", "//shop:word@")
        await accepted(url)
        for master in cluster.masters:
            master.command("ACL", "SETUSER", "shop", "-zadd")
            assert (await refusal(url)).endswith("ACL SETUSER <user> +zadd")
            master.command("ACL", "SETUSER", "shop", "+zadd")
