"""Copy the append-only files of an embedded store consistently while the store writes.

A store keeps a base file, the increments after it and a manifest that names the files in use. A copy needs no
cooperation of the store, and rewrites may go on:

* The manifest is replaced by a rename, and each version of it names all the data. Before a rewrite starts a new
  increment, the store flushes its buffer to the old one.
* All files but the last increment are complete. A file that a rewrite deletes can still be read while it is open.
* With `appendfsync always` a change is in its file before it is acknowledged. So up to the sizes that the files have
  after the manifest was read, they hold every change that was acknowledged before.
* The last increment may end in the middle of a command or a transaction. Loading truncates such an end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from deferd.store.data_dir import APPEND_ONLY_DIR, DataDirectory
from deferd.store.disk_sync import sync_directory
from deferd.store.preflight import StoreRefused

MANIFEST = "appendonly.aof.manifest"
_ATTEMPTS = 20
_CHUNK_BYTES = 1024 * 1024
_SYNC_BYTES = 2 * 1024 * 1024
"""How many bytes of a copy are synced to disk at a time. A store on the same file system waits at its own fsyncs until
the disk has everything that others have written: 0.4 s when a gigabyte was synced at once."""


class StoredFile(NamedTuple):
    """A file; its name is relative to the parent of the append-only directory."""

    name: str
    size: int
    sha256: str


def has_data(data_dir: Path) -> bool:
    """Whether the directory has data of a store."""
    return (data_dir / APPEND_ONLY_DIR / MANIFEST).exists()


def copy_data(source: DataDirectory, target: Path) -> None:
    """Copy the data of a store, which may be running, into the directory `target`, readable by the owner only.

    The copy holds every change that was acknowledged before the call. Not all of it is synced to disk yet.

    Raises:
        StoreRefused: the source has no data, or its files changed during every attempt.
        OSError: a file cannot be read or written.
    """
    if not has_data(source.path):
        raise StoreRefused(
            f"the data directory {source.path} has no data of an embedded store: name the service's directory "
            "(--data-dir, DEFERD_DATA_DIR); a service with --redis-url keeps its jobs in that store, which has its own "
            "backup tools"
        )
    for _ in range(_ATTEMPTS):
        store_pid = source.store_pid()
        with contextlib.suppress(FileNotFoundError):  # a rewrite deleted a file after the manifest was read
            _copy_once(source.path / APPEND_ONLY_DIR, target / APPEND_ONLY_DIR)
            # A restarting store truncates an incomplete end, so a copy made across a restart is inconsistent.
            if source.store_pid() == store_pid:
                return
        shutil.rmtree(target / APPEND_ONLY_DIR, ignore_errors=True)
    raise StoreRefused(
        f"the files in {source.path / APPEND_ONLY_DIR} changed {_ATTEMPTS} times while they were being copied: try "
        "again"
    )


def sync_files(parent: Path) -> list[StoredFile]:
    """Sync the append-only directory in `parent` and its files to disk. Return the files with sizes and checksums."""
    found = []
    for path in sorted((parent / APPEND_ONLY_DIR).iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            found.append(StoredFile(f"{APPEND_ONLY_DIR}/{path.name}", os.fstat(file.fileno()).st_size, digest))
    sync_directory(parent / APPEND_ONLY_DIR)
    return found


def _copy_once(source: Path, target: Path) -> None:
    manifest = (source / MANIFEST).read_text(encoding="utf-8")
    lines = [line for line in manifest.splitlines() if _fields(line).get("type") != "h"]
    names = [fields["file"] for fields in map(_fields, lines) if "file" in fields]
    target.mkdir(mode=0o700)
    with _all_open(source, names) as files:
        # Sizes are read after the manifest and before the first byte is copied.
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        for name, file, size in zip(names, files, sizes, strict=True):
            with _new_file(target / name) as copy:
                _copy_bytes(file, copy, size)
    with _new_file(target / MANIFEST) as copy:
        copy.write("".join(f"{line}\n" for line in lines).encode())


@contextlib.contextmanager
def _all_open(directory: Path, names: list[str]) -> Iterator[list[BinaryIO]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context((directory / name).open("rb", buffering=0)) for name in names]


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _copy_bytes(file: BinaryIO, copy: BinaryIO, size: int) -> None:
    left, unsynced = size, 0
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        copy.write(chunk)
        left -= len(chunk)
        unsynced += len(chunk)
        if unsynced >= _SYNC_BYTES:
            copy.flush()
            os.fsync(copy.fileno())
            unsynced = 0


def _fields(line: str) -> dict[str, str]:
    """The fields of a manifest's line, `file NAME seq NUMBER type b|i|h`; empty for a comment."""
    words = [] if line.startswith("#") else shlex.split(line)
    return dict(zip(words[::2], words[1::2], strict=False))
