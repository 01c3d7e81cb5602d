"""The gate of a service with keys: what no request of a running service shows exactly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import pytest

from deferd.api.auth import gate
from deferd.api.auth.api_keys import Key, Permission, hash_of, parse_keys
from deferd.api.auth.gate import KeyGate
from deferd.api.auth.key_source import KeySource
from deferd.api.resp.session import RespRequest
from deferd.contract.errors import RateLimited
from deferd.contract.scopes import Scope
from deferd.engine.topic_usage import TopicUsage
from tests.waiting import until

TOKEN = "x" * 43


def keys_text(*more: str) -> str:
    lines = ("[[key]]", 'name = "shop"', f'hash = "{hash_of(TOKEN)}"', 'scopes = ["put"]', *more)
    return "\n".join(lines)


def test_a_refused_request_succeeds_when_its_retry_after_has_passed() -> None:
    """The wait is rounded up: a client that comes earlier is refused again."""
    key_gate = KeyGate(KeySource(None, ""))
    key_gate.replace_keys(parse_keys(keys_text("requests_per_second = 0.01", "burst = 1")))
    request = RespRequest({}, b"", b"", [(b"authorization", b"Bearer " + TOKEN.encode())], None)
    admission = key_gate.admit(Permission(Scope.PUT), request)
    admission.authorize()
    with pytest.raises(RateLimited) as refused:
        admission.authorize()
    assert refused.value.retry_after_s == 100


async def test_the_keys_are_read_again_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a revoked key would stay valid."""
    caplog.set_level(logging.INFO, logger="deferd.keys")
    file = tmp_path / "keys.toml"
    file.write_text(keys_text(), encoding="utf-8")
    source = KeySource(file, None)
    reads = 0

    def fail_once() -> list[Key] | None:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise RuntimeError("a fault of the source")
        return [] if reads == 2 else None

    monkeypatch.setattr(gate, "CHECK_S", 0.01)
    monkeypatch.setattr(source, "read_if_changed", fail_once)
    key_gate = KeyGate(source)
    async with key_gate.running(cast("TopicUsage", None)):  # no key has a quota
        assert key_gate.find_key(TOKEN.encode()) is not None
        await until(lambda: key_gate.find_key(TOKEN.encode()) is None, "the key is revoked", within_s=10)
    assert "a fault of the source" in caplog.text
