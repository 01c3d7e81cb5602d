"""One service for the programs of all pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deferd.testing import ServiceForTests
from tests.acceptance.service_process import service_for_tests


@pytest.fixture(scope="session")
def service_of_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceForTests]:
    with service_for_tests(tmp_path_factory.mktemp("pages")) as service:
        yield service


@pytest.fixture
def service(service_of_pages: ServiceForTests) -> ServiceForTests:
    """Without jobs: the pages use the same ids."""
    service_of_pages.purge()
    return service_of_pages
