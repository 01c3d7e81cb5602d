"""Pops that wait, releases, touches and burials on their direct paths, against the general one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.api.direct_worlds import HEADS, CountingDirectPath, Request, Worlds
from tests.integration.store.store_servers import StoreServer


@pytest.fixture(scope="module")
def worlds(running_server: StoreServer) -> Iterator[Worlds]:
    both = Worlds(f"{running_server.url}/6", f"{running_server.url}/7")
    yield both
    both.close()


def end(verb: bytes, more: bytes = b"") -> Request:
    return Request(HEADS[0], b"POST /jobs/{t}/a/%b" % verb, b'{"receipt":"{receipt}"%b}' % more)


POP = Request(b"Host: x", b"GET /topics/{t}/pop?wait=5")


def test_deliveries_end_in_every_way_on_direct_paths(worlds: Worlds) -> None:
    put = Request(HEADS[0], b"POST /jobs", b'{"topic":"{t}","id":"a","max_attempts":2}')
    calls = {
        put: 201,
        POP: 200,
        end(b"touch"): 200,
        end(b"touch", b',"ttr":600'): 200,
        end(b"release", b',"count":false,"delay":0.5'): 200,
        end(b"release", b',"delay":0'): 409,
    }
    again = {POP: 200, end(b"release", b',"delay":0.5,"error":"502"'): 200, end(b"touch", b',"ttr":5'): 409}
    last = {POP: 200, end(b"release"): 200, end(b"bury"): 409, Request(b"Host: x", b"DELETE /jobs/{t}/a"): 200}
    buried = {put: 201, POP: 200, end(b"bury", b',"error":"poison"'): 200, end(b"bury"): 409}
    expected = [one for some in (calls, again, last, buried) for one in some.items()]
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    before = worlds.direct.direct_path.taken.total()
    responses = worlds.compare([request for request, _ in expected])
    assert [int(response[9:12]) for response in responses] == [status for _, status in expected]
    released = [response for response in responses if b'"state":"d' in response and b"due_at" not in response]
    assert released[0].endswith(b'{"state":"dead","attempts":2}')
    assert worlds.direct.direct_path.taken.total() - before == len(expected)


def test_a_retry_is_placed_in_its_opening_hours_on_the_direct_path(worlds: Worlds) -> None:
    now = datetime.now(UTC)
    window = b'{"from":"%b","to":"%b"}' % tuple(
        (now + timedelta(hours=hours)).strftime("%H:%M").encode() for hours in (-1, 1)
    )
    put = Request(HEADS[0], b"POST /jobs", b'{"topic":"{t}","id":"a","window":%b}' % window)
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    before = worlds.direct.direct_path.taken.total()
    worlds.compare([put, POP, end(b"release", b',"delay":7200'), end(b"release")])
    assert worlds.direct.direct_path.taken.total() - before == 4


# Pops that wait


@pytest.mark.parametrize("topics", [b"ends", b"ends,ends.more", b"ends.*"])
def test_a_pop_waits_no_longer_than_until_the_instant_that_it_names(worlds: Worlds, topics: bytes) -> None:
    later = b"Host: x\r\ndeferd-not-after: 9999999999999"
    for world in (worlds.direct, worlds.general):
        path = world.direct_path
        for _ in range(3):  # the head is known then, and the store's clock
            worlds.runner.run(world.send(Request(later, b"GET /topics/%b/pop?wait=0" % topics)))
        before = path.taken.total() if isinstance(path, CountingDirectPath) else -1
        began_s = time.time()
        head = b"Host: x\r\ndeferd-not-after: %d" % ((began_s + 0.4) * 1000)
        response = worlds.runner.run(world.send(Request(head, b"GET /topics/%b/pop?wait=15" % topics)))
        assert response.endswith(b'{"jobs":[]}')
        assert time.time() - began_s < 8
        assert before == -1 or (isinstance(path, CountingDirectPath) and path.taken.total() == before + 1)
