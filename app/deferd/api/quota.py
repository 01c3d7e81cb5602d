"""How many live jobs all topics of a key may hold together.

No script can see to this, since the topics lie in several shards of the store. So they are counted from time to time,
and what the key put here since is added. Until they are counted anew, other processes may put as many again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from deferd.api.keys import TopicPatterns
from deferd.engine.topics import Topics
from deferd.errors import RateLimited, StoreUnavailable
from deferd.model import JobState

COUNT_EVERY_S = 1.0
COUNTING_SHARE = 0.05
"""The most of the time that goes into counting, however many topics there are."""
_PAGE = 1000
_LIVE = (JobState.DELAYED, JobState.READY, JobState.RESERVED)
_log = logging.getLogger("deferd.keys")


class JobQuota:
    """The quota of one key: at most `most` live jobs in the topics that fit `patterns`.

    Its first count is that of `keep_counting`, right at the start.
    """

    __slots__ = ("_being_put", "_counted", "_is_asked", "_key_name", "_most", "_of_shard", "_patterns", "_put_since")

    def __init__(self, key_name: str, patterns: TopicPatterns, most: int) -> None:
        self._patterns = patterns
        self._most = most
        self._key_name = key_name
        self._counted = self._put_since = self._being_put = 0
        self._of_shard: dict[int, int] = {}
        self._is_asked = True

    def revise(self, patterns: TopicPatterns, most: int) -> None:
        """Go on with these in place of the former ones; what was counted stays until the next count."""
        self._patterns = patterns
        self._most = most
        self._is_asked = True

    @contextlib.contextmanager
    def room_for(self, jobs: int) -> Iterator[None]:
        """Around a put of so many jobs. Raises RateLimited when with them there would be too many."""
        self._is_asked = True
        if self._counted + self._put_since + self._being_put + jobs > self._most:
            text = f"the topics of key {self._key_name!r} may hold {self._most} live jobs together"
            raise RateLimited(f"{text}, and have no room for {jobs} more", retry_after_s=math.ceil(COUNT_EVERY_S))
        self._being_put += jobs
        try:
            yield
        finally:
            self._being_put -= jobs
            self._put_since += jobs  # also those that were refused or left in doubt: the next count tells

    async def count(self, topics: Topics) -> None:
        """Count anew what the topics hold, if anybody has asked since the last time.

        For a shard of the store that cannot be reached the last count stands.

        Raises:
            StoreUnavailable: no shard can be.
        """
        if not self._is_asked:
            return
        self._is_asked = False
        stored_before = self._put_since
        live: Counter[int] = Counter()
        unreadable: set[int] = set()
        cursor = None
        while True:
            page = await topics.all.names(cursor, _PAGE, without=unreadable)
            unreadable |= page.unreadable
            for shard, counts in (await topics.all.totals(filter(self._patterns.match, page.names))).items():
                if counts is None:
                    unreadable.add(shard)
                else:
                    live[shard] += sum(counts[state] for state in _LIVE)
            cursor = page.next_cursor
            if cursor is None:
                break
        self._of_shard = dict(live) | {shard: self._of_shard.get(shard, 0) for shard in unreadable}
        self._counted = sum(self._of_shard.values())
        self._put_since -= stored_before  # what was put meanwhile may stand in both until the next time


async def keep_counting(quotas: Callable[[], Iterable[JobQuota]], topics: Topics) -> None:
    """Count for all `quotas` of the moment, again and again, until cancelled."""
    while True:
        began_s = time.monotonic()
        try:
            for quota in tuple(quotas()):
                await quota.count(topics)
        except StoreUnavailable as exc:
            _log.warning("the jobs of keys with a quota could not be counted: %s", exc)
        except Exception:  # noqa: BLE001 (to end here would keep a full key out, or let it put, for ever)
            _log.exception("the jobs of keys with a quota could not be counted")
        took_s = time.monotonic() - began_s
        await asyncio.sleep(max(COUNT_EVERY_S, took_s / COUNTING_SHARE))
