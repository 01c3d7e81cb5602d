"""Commands against the service that tests share."""

from __future__ import annotations

import pytest

from tests.acceptance.cli.command_line import Shell
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def shell(shared_service: ServiceProcess) -> Shell:
    return Shell(shared_service.url)
