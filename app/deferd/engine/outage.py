"""The outages of shards: one call at a time tests whether a shard is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from deferd.contract.errors import StoreUnavailable
from deferd.store.task_cancellation import cancel_and_wait

RETRY_S = 0.5
"""The pause after a failed probe, unless `probe_now` cuts it short."""


class Outage:
    """Calls `probe` until it no longer raises StoreUnavailable; then `on_end`, once.

    `on_failure` is called with the error of each failed probe.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        on_failure: Callable[[StoreUnavailable], None],
        on_end: Callable[[], None],
    ) -> None:
        self._probe = probe
        self._on_failure = on_failure
        self._on_end = on_end
        self._probe_requested = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="deferd-outage")

    def probe_now(self) -> None:
        """Send the next probe without waiting any longer."""
        self._probe_requested.set()

    async def end(self) -> None:
        """Stop probing; `on_end` is not called."""
        await cancel_and_wait({self._task})

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._probe_requested.wait()
            self._probe_requested.clear()
            try:
                await self._probe()
            except StoreUnavailable as error:
                self._on_failure(error)
            except Exception:  # noqa: BLE001 (the shard can be reached; the next call raises what is wrong)
                break
            else:
                break
        self._on_end()


class Outages:
    """The failure domains that cannot be reached now: shards of a cluster, or else the whole store.

    `domain_of` maps a topic to its domain. `on_failure` is called with the domain and the error of each failed probe,
    `on_end` with a domain that is back.
    """

    def __init__(
        self,
        domain_of: Callable[[str], int],
        *,
        on_failure: Callable[[int, StoreUnavailable], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.domain_of = domain_of
        self._on_failure = on_failure
        self._on_end = on_end
        self._outages: dict[int, Outage] = {}
        self._begin_no_more = False

    def is_down(self, domain: int) -> bool:
        """Whether the domain cannot be reached."""
        return domain in self._outages

    def is_topic_down(self, topic: str) -> bool:
        """Whether the topic's domain cannot be reached."""
        return bool(self._outages) and self.domain_of(topic) in self._outages

    def note(self, domain: int, error: Exception, probe: Callable[[], Awaitable[object]]) -> None:
        """A call failed: if the store is unavailable, so is this domain until a `probe` succeeds."""
        if isinstance(error, StoreUnavailable) and domain not in self._outages and not self._begin_no_more:
            self._outages[domain] = Outage(
                probe, on_failure=partial(self._on_failure, domain), on_end=partial(self._end, domain)
            )

    def probe_now(self, domain: int) -> None:
        """If the domain is down, test now whether it is back."""
        outage = self._outages.get(domain)
        if outage is not None:
            outage.probe_now()

    def probe_topic_now(self, topic: str) -> None:
        """As `probe_now`, for the topic's domain."""
        self.probe_now(self.domain_of(topic))

    def drain(self) -> None:
        """From now on errors begin no outage, so that nobody waits for its end."""
        self._begin_no_more = True

    async def close(self) -> None:
        """Stop all probing."""
        outages = list(self._outages.values())
        self._outages.clear()
        for outage in outages:
            await outage.end()

    def _end(self, domain: int) -> None:
        self._outages.pop(domain, None)
        self._on_end(domain)
