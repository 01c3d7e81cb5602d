"""Metrics of the store's state that alerts use: consumers and durability by topic, and what the store is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer
from tests.waiting import wait_until

WITHIN_S = 15.0


def by_topic(text: str, name: str) -> dict[str, float]:
    [family] = [family for family in text_string_to_metric_families(text) if family.name == name]
    return {sample.labels["topic"]: sample.value for sample in family.samples}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Of its own: the shared one may have more topics than it labels."""
    with running_service(data_dir=tmp_path_factory.mktemp("metrics")) as service:
        yield service


@pytest.fixture
def http(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, verify=NO_TLS) as http:
        yield http


@pytest.mark.slow  # consumers are published every two seconds
def test_consumers_are_counted_by_topic_also_those_of_patterns(http: httpx.Client) -> None:
    for name in ("shop.both", "shop.pattern", "other"):
        assert http.put(f"/topics/{name}", json={}).status_code == 200
    for topics, consumer in (("shop.both", "one"), ("shop.both", "one"), ("shop.b*,shop.pat*", "two")):
        assert http.get(f"/topics/{topics}/pop", params={"wait": 0, "consumer": consumer}).status_code == 200
    expected = {"shop.both": 2.0, "shop.pattern": 1.0, "other": 0.0}
    wait_until(
        lambda: expected.items() <= by_topic(http.get("/metrics").text, "deferd_consumers").items(),
        WITHIN_S,
        "all consumers are counted",
    )


def test_a_durability_that_the_store_does_not_support_is_shown(http: httpx.Client) -> None:
    levels = {"memory": 1.0, "fsync": 1.0, "replicated:1": 0.0}
    for level in levels:
        assert http.put(f"/topics/{level}", json={"durability": level}).status_code == 200
    assert http.put("/topics/any", json={}).status_code == 200
    assert by_topic(http.get("/metrics").text, "deferd_topic_durability_available") == levels


@pytest.mark.slow
def test_the_version_of_a_store_that_is_down_is_unknown(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store") as store:
        flags = ("--redis-url", store.url, "--store-timeout", "0.5")
        with (
            ServiceProcess(tmp_path, *flags, preloaded=True) as service,
            httpx.Client(base_url=service.url, verify=NO_TLS) as http,
        ):
            assert 'store="valkey ' in http.get("/metrics").text
            store.kill()
            wait_until(lambda: "deferd_store_up 0.0" in http.get("/metrics").text, WITHIN_S, "the store counts as down")
            text = http.get("/metrics").text
    assert 'store="unknown"' in text
    assert "deferd_store_fsync" not in text
