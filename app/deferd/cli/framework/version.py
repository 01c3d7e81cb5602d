"""The version of the package that is installed."""

from __future__ import annotations


def version() -> str:
    """The installed version of the package, such as ``0.1.0``."""
    from importlib import metadata  # a third of the time of `deferd --help`

    try:
        return metadata.version("deferd")
    except metadata.PackageNotFoundError:
        return "(not installed)"
