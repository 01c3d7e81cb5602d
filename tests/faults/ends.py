"""What the ends of jobs have put, taken after all faults: one job for each end.

With asynchronous replication a failover may lose an end that was acknowledged. Then it has lost the job of the end too,
and the job ends once more: another number of ends shows a pair that was torn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import count

from deferd import AsyncClient
from deferd.engine.redis_keys import Keys

BATCH = 1000


def topic_of_ends(keys: Keys, topic: str) -> str:
    """A topic in the shard of this one."""
    names = (f"{topic}.ended.{number}" for number in count())
    return next(name for name in names if keys.shard_of(name) == keys.shard_of(topic))


async def wrong_ends(
    client: AsyncClient, topics: Iterable[str], acknowledged: Collection[str], tries: Mapping[str, int]
) -> list[str]:
    """Pop all that ends have put into `topics`: a sentence for each job that does not have as many ends as it may have.

    `tries`: how often each job was put. One with an acknowledged put has ended at least once, and at most so often.
    """
    ends: Counter[str] = Counter()
    for topic in topics:
        while jobs := await client.pop(topic, count=BATCH, wait=0):
            ends.update(job.body["id"] for job in jobs)
    return [
        f"{job} was put {tries.get(job, 0)} times, and has {ends[job]} ends"
        for job in sorted({*acknowledged, *ends})
        if not (job in acknowledged) <= ends[job] <= tries.get(job, 0)
    ]
