"""The part of the check of a topic that concerns how it is partitioned, and whether its jobs are where calls look."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import orjson

from deferd.contract.finding_kinds import FindingKind
from deferd.contract.limits import PARTITIONS_MAX
from deferd.engine.consistency.findings import STEP, Finding, TopicReport, paced, read_findings, text
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import number_of, topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_NO_REPAIR, _REPAIR, _WRITE_AGAIN = 0, 1, 2
_IS_BEING_SPREAD = b"!"


def in_words(partition: str) -> str:
    """A partition as people read it: the topic, and the number of a partition that has not the topic's name."""
    number = number_of(partition)
    return f"{topic_of(partition)}, partition {number}" if number else partition


class PartitionCheck:
    """Checks the partitions of one topic as a whole; findings go into `report`, which says whether to repair them.

    The methods raise StoreUnavailable, and go in this order; those after the first need a topic of several partitions.
    """

    def __init__(self, scripts: Scripts, keys: Keys, partitions: PartitionStore, report: TopicReport) -> None:
        self._scripts = scripts
        self._keys = keys
        self._partitions = partitions
        self._topic = report.topic
        self._report = report

    async def check_layout(self) -> bool:
        """Check the stored layout; returns whether it, or the settings, say that there are several partitions."""
        settings, layout, found = await self._read(_REPAIR if self._report.repaired else _NO_REPAIR)
        for one in read_findings(found):
            self._report.findings.add(replace(one, subject=self._topic))
        await self._partitions.refresh(self._topic)
        return bool(layout or _number(settings, "n") > 1)

    async def check_settings(self) -> None:
        """Check that all partitions have the settings of the topic; a repair gives them these."""
        settings, layout, _ = await self._read(_NO_REPAIR)
        is_repair = self._report.repaired
        if not settings or (layout.endswith(_IS_BEING_SPREAD) and not is_repair):
            return
        latest = -1
        for partition in self._keys.partitions.of(self._topic)[1:]:
            key = self._keys.of_shard(self._keys.shard_of(partition), "settings")
            copy = await self._scripts.command("HGET", key, partition) or b""
            if copy == settings:
                continue
            again, layout, _ = await self._read(_NO_REPAIR)  # they may have changed meanwhile
            if again != settings:
                break
            latest = max(latest, _number(copy, "rv"))
            if not layout.endswith(_IS_BEING_SPREAD):
                detail = f"{_in_short(copy)}, those of the topic are {_in_short(settings)}"
                self._report.findings.add(Finding(FindingKind.PARTITION_SETTINGS, in_words(partition), detail))
        if is_repair:
            if latest >= _number(settings, "rv"):  # else a copy replaces what the partition has
                await self._read(_WRITE_AGAIN, latest)
            await self._partitions.spread(self._topic)

    async def check_homes(self) -> None:
        """Check that each job is in a partition where calls look for it, and in one only."""
        are_lost = False
        for partition in self._keys.partitions.of(self._topic):
            async for ids in self._ids_of(partition):
                for job_id in ids:
                    if self._keys.partitions.home(self._topic, job_id) != partition:
                        are_lost |= await self._check_job(partition, job_id)
        if are_lost and self._report.repaired:
            await self._read(_WRITE_AGAIN)
            await self._partitions.spread(self._topic)

    async def _check_job(self, partition: str, job_id: str) -> bool:
        """Check a job that is not where its id belongs now; returns whether no call finds it."""
        homes = self._keys.partitions.homes(self._topic, job_id)
        if partition not in homes:  # others may have changed the layout since the check began
            await self._partitions.refresh(self._topic)
            homes = self._keys.partitions.homes(self._topic, job_id)
        holders = [home for home in homes if home != partition and await self._has(home, job_id)]
        # In this order: an id that a former partition does not hold any more is never put there again.
        if not await self._has(partition, job_id):
            return False
        if holders:
            where = " and ".join(str(number_of(one)) for one in sorted({partition, *holders}, key=number_of))
            self._report.findings.add(Finding(FindingKind.IN_TWO_PARTITIONS, job_id, f"partitions {where}"))
        elif partition not in homes:
            detail = f"in partition {number_of(partition)}, and belongs in partition {number_of(homes[0])}"
            self._report.findings.add(Finding(FindingKind.MISPLACED, job_id, detail))
            return True
        return False

    async def _ids_of(self, partition: str) -> AsyncIterator[list[str]]:
        cursor: bytes | int = 0
        while cursor != b"0":
            run = self._scripts.run("pool_ids", (self._keys.named(partition, "pool"),), (cursor, STEP))
            cursor, *ids = await paced(run)
            yield [text(job_id) for job_id in ids]

    async def _has(self, partition: str, job_id: str) -> bool:
        return bool(await self._scripts.command("HEXISTS", self._keys.named(partition, "pool"), job_id))

    async def _read(self, repair: int, latest: int = 0) -> tuple[bytes, bytes, list[bytes]]:
        """Settings and layout of the topic, and findings. `latest` is the latest revision that any partition has."""
        shard = self._keys.shard_of(self._topic)
        keys = (*self._keys.of_topic(self._topic), self._keys.of_shard(shard, "partitioned"))
        args = (self._topic, repair, PARTITIONS_MAX, latest)
        settings, layout, found = await self._scripts.run("audit_partitions", keys, args)
        return settings, layout, found


def _number(settings: bytes, name: str) -> int:
    """A whole number of stored settings, 0 if they have none or cannot be read."""
    try:
        number = orjson.loads(settings).get(name, 0) if settings else 0
    except (ValueError, AttributeError):
        return 0
    return number if isinstance(number, int) else 0


def _in_short(settings: bytes) -> str:
    if not settings:
        return "none"
    return f"revision {_number(settings, 'rv')} for {_number(settings, 'n')} partitions"
