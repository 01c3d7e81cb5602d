"""How much slower is a bystander's job while another key floods the service?

    python -m tests.benchmarks.floods [--seconds 10] [--flood slow]

For each flood of `tests.acceptance.api.key_floods` there are three phases, over HTTPS: the bystander alone; while the
flood goes to another service on the same machine, which shows what the flood's own processes take of it; while it goes
to the bystander's service. The figure is the last p99 over the one before it. A job is one put, one pop, one finish.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.acceptance.api import key_floods
from tests.acceptance.api.key_floods import FLOODS
from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.server.test_http_abuse import HonestClient
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.benchmarks.measuring import percentile, show_target

MOST = 2.0
UNSENT_MAX_BYTES = 8 * 1024 * 1024
WARM_UP_S = 2.0


class Arena:
    """Two services with the same keys, and a bystander of the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files, self.keys = TlsFiles(folder / "tls"), KeysFile(folder / "keys.toml")
        self.keys.add("bystander", "put", "pop")
        for name in FLOODS:
            max_bytes = 12_000_000 if name == "slow" else 500_000
            scopes = key_floods.SCOPES.get(name, ("put", "pop", "cancel", "read"))
            self.keys.add(name, *scopes, topics=(f"{name}.*",), more=key_floods.QUOTA.format(max_bytes=max_bytes))

    @contextlib.contextmanager
    def service(self, name: str) -> Iterator[ServiceProcess]:
        limits = ("--max-connections", "100", "--max-unsent-bytes", str(UNSENT_MAX_BYTES))
        flags = (*self.files.flags(), "--keys-file", str(self.keys.path), *limits)
        with running_service(*flags, data_dir=self.folder / name) as service:
            yield service

    @contextlib.asynccontextmanager
    async def bystander(self, service: ServiceProcess) -> AsyncIterator[HonestClient]:
        honest = HonestClient(
            f"https://127.0.0.1:{service.port}", "bystander", key=self.keys.tokens["bystander"], tls=self.files.trust()
        )
        working = asyncio.create_task(honest.work())
        try:
            yield honest
            if working.done():
                working.result()
        finally:
            working.cancel()
            await asyncio.wait((working,))

    async def flood(self, name: str, service: ServiceProcess, seconds: float) -> None:
        await key_floods.run_flood(
            name, service.port, self.files.authority_file, self.keys.tokens[name], seconds=seconds
        )


async def measure(arena: Arena, names: list[str], seconds: float) -> dict[str, tuple[float, ...]]:
    """For each flood the p99 of a job in ms: alone, beside the flood of another service, and in the flood."""
    figures = {}
    with arena.service("flooded") as service, arena.service("other") as other:
        async with arena.bystander(service) as honest:
            await asyncio.sleep(WARM_UP_S)
            for name in names:
                p99_ms = []
                for target in (None, other, service):
                    before = honest.done
                    await (asyncio.sleep(seconds) if target is None else arena.flood(name, target, seconds))
                    p99_ms.append(percentile([took_s * 1000 for took_s in honest.took_s[before:]], 0.99))
                figures[name] = tuple(p99_ms)
                print(f"{name:<12}" + "".join(f"{figure:>12.1f}" for figure in p99_ms), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--flood", choices=sorted(FLOODS), action="append", help="repeatable; all by default")
    options = parser.parse_args()
    print("p99 of a bystander's job, ms\n" + "".join(f"{head:>12}" for head in ("", "alone", "beside", "flooded")))
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Arena(Path(folder)), options.flood or list(FLOODS), options.seconds))
    for name, (_, beside_ms, flooded_ms) in figures.items():
        show_target(f"{name}: flooded over beside", flooded_ms / beside_ms, at_most=MOST)


if __name__ == "__main__":
    main()
