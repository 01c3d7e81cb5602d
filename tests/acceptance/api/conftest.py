"""One service with keys for all tests of what a key may do or see, unless their module starts its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.api.keyed_service import KeysFile, keys_of_every_kind
from tests.acceptance.service_process import ServiceProcess, running_service


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = keys_of_every_kind(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("shop", "read", "cancel", topics=("shop.*",))
    keys.add("few", "read", "put", topics=("mine.*",), more="max_jobs = 7")
    keys.add("revoked", "read")
    return keys


@pytest.fixture(scope="session")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service("--keys-file", str(keys.path), data_dir=tmp_path_factory.mktemp("keyed")) as service:
        service.wait_ready()
        yield service
        assert not [name for name, token in keys.tokens.items() if token in service.output()]
