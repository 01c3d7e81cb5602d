"""Reading a server's version from INFO, for versions that are not installed."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.store.server_info import OLDEST_VERSION, server_name, server_version


@pytest.mark.parametrize(
    ("info", "version", "name", "new_enough"),
    [
        ({"redis_version": "5.0.14"}, (5, 0), "redis 5.0.14", False),
        ({"redis_version": "6.0.16"}, (6, 0), "redis 6.0.16", False),
        ({"redis_version": "6.2.0"}, (6, 2), "redis 6.2.0", False),
        ({"redis_version": "7.0.15"}, (7, 0), "redis 7.0.15", True),
        ({"redis_version": "10.1.0"}, (10, 1), "redis 10.1.0", True),
        ({"redis_version": 7.4}, (7, 4), "redis 7.4", True),  # redis-py parses it as a number
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, (7, 2), "valkey 9.1.2", True),
        ({"redis_version": "255.255.255"}, (255, 255), "redis 255.255.255", True),
        ({"redis_version": "unstable"}, (0, 0), "redis unstable", False),
        ({}, (0, 0), "redis (unknown version)", False),
    ],
)
def test_version_and_name(info: dict[str, Any], version: tuple[int, int], name: str, new_enough: bool) -> None:
    assert server_version(info) == version
    assert server_name(info) == name
    assert (server_version(info) >= OLDEST_VERSION) is new_enough
