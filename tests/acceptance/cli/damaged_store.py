"""A service on a store whose keys tests can break directly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deferd.engine.redis_keys import Keys
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer


@dataclass(frozen=True)
class BreakableService:
    """The service, and ways to break its store."""

    service: ServiceProcess
    store: StoreServer

    def lose_from_list(self, topic: str, job_id: str) -> None:
        """Remove a ready job from the Ready list."""
        assert self.store.command("ZREM", self._key(topic, "ready"), job_id) == 1

    def lose_record(self, topic: str, job_id: str) -> None:
        """Remove the record of a job; its id stays in the sets."""
        assert self.store.command("HDEL", self._key(topic, "pool"), job_id) == 1

    def unlist(self, topic: str) -> None:
        """Remove the topic from the list of topics."""
        self.store.command("HDEL", "deferd:{0}:settings", topic)
        self.store.command("ZREM", "deferd:{0}:topics", topic)

    def replace_by_text(self, key: str) -> None:
        """Replace a key of the shard by a string."""
        self.store.command("SET", f"deferd:{{0}}:{key}", "x")

    @staticmethod
    def _key(topic: str, name: str) -> str:
        return f"deferd:{{0}}:{topic}:{name}"


@contextlib.contextmanager
def breakable_service(folder: Path) -> Iterator[BreakableService]:
    """A service and its store until the end of the block; the store keeps nothing."""
    assert Keys(1).shard_of("any") == 0
    (folder / "store").mkdir()
    with (
        StoreServer(folder / "store") as store,
        running_service("--redis-url", store.mark_used().url, data_dir=folder / "service") as service,
    ):
        yield BreakableService(service, store)
