"""Alerts, dashboard and documents use only metrics that a real service has, with the labels that they have."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from deferd import AsyncClient, Client
from deferd.api import metrics as api_metrics
from deferd.contract.errors import TopicFull
from deferd.engine import metrics as engine_metrics
from deferd.push import topic_pusher
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.monitoring_files import ROOT, grouped_by, queries, selectors

OF_THE_SCRAPE = {"instance", "job"}
PAGES = ("operations.md", "monitoring.md")


async def use(url: str, ca_file: Path | None = None) -> str:
    """Give each metric of the store's state a series, and return the metrics."""
    topic = f"t-{uuid.uuid4().hex}"
    async with AsyncClient(url, ca_file=ca_file) as client:
        await client.set_topic(topic, {"durability": "fsync"})
        await client.put(topic, id="delayed", delay=600)
        await client.put(topic, id="held")
        await client.pop(topic, consumer="c1")
        await client.put(topic, 1, id="held", on_conflict="replace", if_reserved="after")
        await client.put(topic, 1, id="items", delay=600, on_conflict="append")
        await client.report_relay("r1", database="db:5432/shop", working=True, rows=0, refused=0, lag=0)
        await client.set_push(f"{topic}-pushed", "http://localhost:1/", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
        return await client.metrics()


def labels_in(text: str) -> dict[str, set[str]]:
    """The labels of each metric in an exposition; of one without series yet, those that it declares."""
    declared = {
        metric._name: set(metric._labelnames)
        for module in (engine_metrics, api_metrics, topic_pusher)
        for metric in vars(module).values()
        if hasattr(metric, "_labelnames")
    }
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        kind = family.type
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(kind, [""])
        for suffix in suffixes:
            labels = found.setdefault(family.name + suffix, set(declared.get(family.name, ())))
            labels |= {label for one in family.samples if one.name == family.name + suffix for label in one.labels}
            if suffix == "_bucket":
                labels.add("le")
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, files: TlsFiles) -> Iterator[ServiceProcess]:
    """Of its own: the shared one may have more topics than it labels."""
    flags = ("--push-allow", "localhost:1", "--shelf-after", "1h", *files.flags())
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("metrics")) as service:
        yield service


@pytest.fixture(scope="module")
def known(service: ServiceProcess, files: TlsFiles) -> Mapping[str, set[str]]:
    return labels_in(asyncio.run(use(service.url, files.authority_file)))


def test_every_query_uses_metrics_and_labels_that_exist(known: Mapping[str, set[str]]) -> None:
    wrong = []
    for where, query in queries():
        used = list(selectors(query))
        assert used, where
        labels = OF_THE_SCRAPE.union(*(known.get(name, ()) for name, _ in used))
        wrong += [f"{where}: no metric {name}" for name, _ in used if name not in known]
        wrong += [
            f"{where}: {name} has no label {label}"
            for name, selected in used
            for label in selected - known.get(name, set()) - OF_THE_SCRAPE
        ]
        wrong += [f"{where}: no label {label}" for label in grouped_by(query) - labels]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_that_a_page_names_exists(known: Mapping[str, set[str]], page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    families = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in known} | set(known)
    assert [name for name in re.findall(r"`(deferd_\w+)", text) if name not in families] == []


def test_every_metric_is_documented_with_its_labels(known: Mapping[str, set[str]]) -> None:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(deferd_\w+)` \| \w+ \| ([^|]*?) *\|", text, re.MULTILINE))
    documented = {
        name: {label.strip() for label in labels.split(",") if label.strip()} for name, labels in rows.items()
    }
    families = {
        re.sub(r"_bucket$", "", name): labels - {"le"}
        for name, labels in known.items()
        if name.startswith("deferd_") and not name.endswith(("_sum", "_count"))
    }
    assert documented == families


def test_puts_into_a_full_topic_are_counted_by_themselves(service: ServiceProcess, files: TlsFiles) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    with Client(service.url, ca_file=files.authority_file, retry_for=0) as client:
        client.set_topic(topic, {"max_jobs": 1})
        client.put(topic)
        with pytest.raises(TopicFull):
            client.put(topic)
        lines = client.metrics().splitlines()
    assert f'deferd_puts_total{{outcome="full",topic="{topic}"}} 1.0' in lines


def test_the_end_of_the_certificate_is_a_metric_of_services_with_https_only(
    service: ServiceProcess, shared_service: ServiceProcess, files: TlsFiles
) -> None:
    name = "deferd_certificate_end_timestamp_seconds"
    with Client(service.url, ca_file=files.authority_file) as client:
        [line] = [line for line in client.metrics().splitlines() if line.startswith(name)]
    ends_at = x509.load_pem_x509_certificate(files.cert.read_bytes()).not_valid_after_utc
    assert float(line.split()[1]) == ends_at.timestamp()
    with Client(shared_service.url) as client:
        assert name not in client.metrics()


def created_series(text: str) -> set[str]:
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert "deferd_puts_total" in names
    return {name for name in names if name.endswith("_created")}


async def test_no_series_say_when_others_began(service: ServiceProcess, files: TlsFiles) -> None:
    assert created_series(await use(service.url, files.authority_file)) == set()


@pytest.mark.slow
async def test_nor_do_those_of_several_processes(tmp_path: Path) -> None:
    with running_service("--workers", "3", "--push-allow", "localhost:1", data_dir=tmp_path) as service:
        assert created_series(await use(service.url)) == set()


async def test_the_build_is_named_once(service: ServiceProcess, files: TlsFiles) -> None:
    text = await use(service.url, files.authority_file)
    [line] = [line for line in text.splitlines() if line.startswith("deferd_build_info{")]
    assert re.fullmatch(
        r'deferd_build_info\{python="3\.\d+\.\d+",store="valkey \d+\.\d+\.\d+",version="\d+\.\d+\.\d+[^"]*"\} 1\.0',
        line,
    )
