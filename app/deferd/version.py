"""The version of the installed package."""

from __future__ import annotations

from importlib import metadata

try:
    VERSION = metadata.version("deferd")
except metadata.PackageNotFoundError:  # the source was copied, not installed
    VERSION = "0+unknown"
