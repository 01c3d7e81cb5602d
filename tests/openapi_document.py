"""The OpenAPI document of the repository. To read it takes a second, so all tests of a process share it."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from deferd.api.openapi.__main__ import FILE


@cache
def openapi_document() -> dict[str, Any]:
    """What openapi/openapi.yaml says. Whoever changes it copies it first."""
    document: dict[str, Any] = yaml.load(FILE.read_bytes(), yaml.CSafeLoader)
    return document
