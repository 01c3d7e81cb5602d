"""The files of the console, below a folder whose name is a hash of all of them: browsers may keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

FOLDER = Path(str(files("deferd.console") / "static"))
_MEDIA_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""Files of other kinds, such as licences, are not served."""


class StaticFile(NamedTuple):
    """A file's media type and content, and the content compressed once."""

    media_type: bytes
    content: bytes
    compressed: bytes


class StaticFiles(NamedTuple):
    """`version` is the name of the folder in URLs. Within it names stay as they are, so modules can import others."""

    version: str
    files: Mapping[str, StaticFile]


@lru_cache(maxsize=1)
def static_files() -> StaticFiles:
    """All files, read and compressed at the first use."""
    found: dict[str, StaticFile] = {}
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        media_type = _MEDIA_TYPES.get(path.suffix)
        if media_type is not None:
            name, content = path.relative_to(FOLDER).as_posix(), path.read_bytes()
            digest.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
            found[name] = StaticFile(media_type, content, gzip.compress(content, 9, mtime=0))
    return StaticFiles(digest.hexdigest()[:16], MappingProxyType(found))
