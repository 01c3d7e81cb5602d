"""Direct paths of pops that wait."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.api.direct_worlds import CountingDirectPath, Request, Worlds
from tests.integration.store.store_servers import StoreServer


@pytest.fixture(scope="module")
def worlds(running_server: StoreServer) -> Iterator[Worlds]:
    both = Worlds(f"{running_server.url}/6", f"{running_server.url}/7")
    yield both
    both.close()


@pytest.mark.parametrize("topics", [b"ends", b"ends,ends.more", b"ends.*"])
def test_a_pop_waits_no_longer_than_until_the_instant_that_it_names(worlds: Worlds, topics: bytes) -> None:
    later = b"Host: x\r\ndeferd-not-after: 9999999999999"
    for world in (worlds.direct, worlds.general):
        path = world.direct_path
        for _ in range(3):  # the head is known then, and the store's clock
            worlds.runner.run(world.send(Request(later, b"GET /topics/%b/pop?wait=0" % topics)))
        before = path.taken.total() if isinstance(path, CountingDirectPath) else -1
        began_s = time.time()
        head = b"Host: x\r\ndeferd-not-after: %d" % ((began_s + 1) * 1000)
        response = worlds.runner.run(world.send(Request(head, b"GET /topics/%b/pop?wait=15" % topics)))
        assert response.endswith(b'{"jobs":[]}')
        assert time.time() - began_s < 8
        assert before == -1 or (isinstance(path, CountingDirectPath) and path.taken.total() == before + 1)
