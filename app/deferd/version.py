"""The version of the installed package, and how to install more of it."""

from __future__ import annotations

from importlib import metadata

try:
    VERSION = metadata.version("deferd")
except metadata.PackageNotFoundError:  # the source was copied, not installed
    VERSION = "0+unknown"


def how_to_install(extra: str) -> str:
    """What to type for an extra of the package.

    The name is not on the package index, and `pip install deferd` would install what somebody else puts there.
    """
    return f"pip install '.[{extra}]' in a copy of deferd's repository"
