"""Direct paths while what they depend on changes: the keys of the service, and the state and kind of the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferd.api.auth.api_keys import hash_of, parse_keys
from deferd.api.auth.gate import KeyGate
from tests.integration.api.direct_worlds import HEADS, CountingDirectPath, Request, World, Worlds
from tests.integration.api.test_direct_paths import JOB
from tests.integration.store.store_servers import ClusterSet, SentinelSet, StoreServer

TOKEN = "the-token-of-the-holder".ljust(43, "x")
HEAD = b"Host: x\r\nAuthorization: Bearer %b\r\nContent-Length: %%d" % TOKEN.encode()
LIFE = [
    Request(HEAD, b"POST /jobs", JOB),
    Request(HEAD, b"POST /jobs/{t}/a/finish", b'{"receipt":"x"}'),
    Request(b"Host: x\r\nAuthorization: Bearer %b" % TOKEN.encode(), b"DELETE /jobs/{t}/a"),
]


def keys(scopes: tuple[str, ...] = ("put", "pop", "cancel"), *more: str, token: str = TOKEN) -> str:
    lines = ["[[key]]", 'name = "holder"', f'hash = "{hash_of(token)}"', f"scopes = {json.dumps(scopes)}", *more]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def keyed_worlds(server: StoreServer) -> Iterator[Worlds]:
    both = Worlds(server.url, f"{server.url}/1", keys=keys())
    yield both
    both.close()


def taken(worlds: Worlds) -> int:
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    return worlds.direct.direct_path.taken.total()


@pytest.mark.parametrize(
    ("changed", "statuses", "calls_taken"),
    [
        (keys(), [b"201", b"409", b"200"], 3),
        (keys(token="y" * 43), [b"401", b"401", b"401"], 0),
        (keys(("read",)), [b"403", b"403", b"403"], 0),
        (keys(("put", "pop"), 'topics = ["t*"]'), [b"201", b"409", b"403"], 2),
        (keys(("put", "pop", "cancel"), 'topics = ["other.*"]'), [b"403", b"403", b"403"], 0),
        (
            keys(("put", "pop", "cancel"), "requests_per_second = 0.001", "burst = 2"),
            [b"201", b"409", b"429"],
            2,
        ),
        (keys(("put", "pop", "cancel"), "max_jobs = 1"), [b"201", b"409", b"200"], 3),
        (keys(("put", "pop", "cancel"), "max_body_bytes = 20"), [b"413", b"404", b"404"], 2),
    ],
)
def test_a_change_of_the_key_holds_from_the_next_call_on(
    keyed_worlds: Worlds, changed: str, statuses: list[bytes], calls_taken: int
) -> None:
    def replace_keys(text: str) -> None:
        for world in (keyed_worlds.direct, keyed_worlds.general):
            gate = world.service.context.gate
            assert isinstance(gate, KeyGate)
            gate.replace_keys(parse_keys(text))

    replace_keys(keys())
    for _ in range(3):
        keyed_worlds.compare(LIFE)
    replace_keys(changed)
    before = taken(keyed_worlds)
    assert [response[9:12] for response in keyed_worlds.compare(LIFE)] == statuses
    assert taken(keyed_worlds) - before == calls_taken


OPEN_LIFE = [
    Request(HEADS[0], b"POST /jobs", JOB),
    Request(HEADS[0], b"POST /jobs/{t}/a/finish", b'{"receipt":"x"}'),
    Request(b"Host: x", b"DELETE /jobs/{t}/a"),
    Request(b"Host: x", b"GET /topics/{t}/pop?wait=0"),
]


@pytest.fixture(scope="module")
def open_worlds(server: StoreServer) -> Iterator[Worlds]:
    both = Worlds(f"{server.url}/2", f"{server.url}/3")
    yield both
    both.close()


def test_calls_that_a_read_only_store_refuses_get_503(open_worlds: Worlds, server: StoreServer) -> None:
    for _ in range(3):
        open_worlds.compare(OPEN_LIFE)
    before = taken(open_worlds)
    server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        for world in (open_worlds.direct, open_worlds.general):
            responses = [open_worlds.runner.run(world.send(request, b"refused")) for request in OPEN_LIFE]
            put, finish, cancel, pop = [response[9:12] for response in responses]
            assert put == pop == b"503"
            # Without a job these two do not write; but a refused connection is closed, and may not be open again yet.
            assert {finish, cancel} <= {b"404", b"503"}
    finally:
        server.command("REPLICAOF", "NO", "ONE")
    assert taken(open_worlds) - before == len(OPEN_LIFE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ClusterSet, SentinelSet])
def test_direct_paths_lead_to_stores_of_several_servers(kind: type[ClusterSet | SentinelSet], tmp_path: Path) -> None:
    with kind(tmp_path) as store:
        both = Worlds(store.url, store.url)
        try:
            before = taken(both)
            for number in range(12):
                both.runner.run(_live(both.direct, b"direct%d" % number))
            assert taken(both) - before >= 11 * 4
        finally:
            both.close()


async def _live(world: World, topic: bytes) -> None:
    put = Request(HEADS[0], b"POST /jobs", JOB)
    pop = Request(b"Host: x", b"GET /topics/{t}/pop?wait=0")
    finish = Request(HEADS[0], b"POST /jobs/{t}/a/finish", b'{"receipt":"{receipt}"}')
    cancel = Request(b"Host: x", b"DELETE /jobs/{t}/a")
    statuses = [(await world.send(request, topic))[9:12] for request in (put, pop, finish, cancel)]
    assert statuses == [b"201", b"200", b"200", b"404"]
