"""Which primary is followed, when checks of the sentinels overlap."""

from __future__ import annotations

import asyncio
from typing import Any

from deferd.store.sentinel import _SentinelClient, _View
from deferd.store.url import parse_store_url

OLD, NEW = _View(5, True, True, ("old", 1)), _View(6, True, True, ("new", 1))


async def test_a_check_that_began_before_a_failover_does_not_lead_back_to_the_old_primary() -> None:
    client = _SentinelClient(parse_store_url("redis+sentinel://a,b,c/name"), timeout_s=60)
    view, responded = OLD, asyncio.Event()

    async def view_of(sentinel: Any) -> _View:
        if sentinel is client.sentinels[-1]:  # it is down, like the old primary beside it
            await asyncio.Event().wait()
        responded.set()
        return view

    client._view_of = view_of  # type: ignore[method-assign]
    assert await client._query(grace_s=0) == OLD.address
    responded.clear()
    earlier = asyncio.create_task(client._query(grace_s=0.2))
    await responded.wait()
    view = NEW
    assert await client._query(grace_s=0) == NEW.address
    assert not earlier.done()

    assert await earlier == NEW.address
    assert client._primary == NEW.address

    view = OLD
    assert await client._query(grace_s=0) == OLD.address, "most sentinels were set up again"
