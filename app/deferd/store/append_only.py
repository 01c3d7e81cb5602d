"""The append-only files in which an embedded store keeps its data, and a consistent copy of them while it writes.

A store keeps a base file, the increments after it and a manifest that names the files that count. A copy needs neither
the store's help nor a pause of its rewrites:

* A manifest is replaced by a rename, and each version of it names all the data. Before a rewrite starts a new
  increment, the store writes out what it has buffered for the old one.
* All files but the last increment are complete. One that a rewrite deletes can still be read by whoever has it open.
* With `appendfsync always` a change is in its file before it is acknowledged. So the files hold, at the size that they
  have after the manifest was read, every change that was acknowledged before.
* The last increment may end in the middle of a command or a transaction. Loading cuts such an end off.
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
from deferd.store.preflight import StoreRefused

MANIFEST = "appendonly.aof.manifest"
_TRIES = 20
_CHUNK_BYTES = 1024 * 1024


class StoredFile(NamedTuple):
    """A file by its name below the folder that holds the append-only folder."""

    name: str
    size: int
    sha256: str


def has_data(folder: Path) -> bool:
    """Whether a store keeps data in the folder, or did."""
    return (folder / APPEND_ONLY_DIR / MANIFEST).exists()


def copy_data(source: DataDirectory, target: Path) -> None:
    """Copy the data of a store, which may be running, into the folder `target`, where only the owner can read it.

    The copy holds every change that was acknowledged before the call. It is not synced to disk yet.

    Raises:
        StoreRefused: the source has no data, or it changed each time while its files were being opened.
        OSError: a file cannot be read or written.
    """
    if not has_data(source.path):
        raise StoreRefused(
            f"the data folder {source.path} has no data of an embedded store: name the service's folder (--data-dir, "
            "DEFERD_DATA_DIR); a service with --redis-url keeps its jobs in that store, which has its own backup tools"
        )
    for _ in range(_TRIES):
        store_pid = source.store_pid()
        with contextlib.suppress(FileNotFoundError):  # a rewrite ended after the manifest was read, and deleted a file
            _copy_once(source.path / APPEND_ONLY_DIR, target / APPEND_ONLY_DIR)
            # A store that starts again cuts off an incomplete end: bytes that were read across that do not fit.
            if source.store_pid() == store_pid:
                return
        shutil.rmtree(target / APPEND_ONLY_DIR, ignore_errors=True)
    raise StoreRefused(
        f"the files in {source.path / APPEND_ONLY_DIR} changed {_TRIES} times while they were being copied: try again"
    )


def files_of(folder: Path) -> list[StoredFile]:
    """Sync the append-only files below `folder` and their folder to disk; their sizes and checksums, by name."""
    found = []
    for path in sorted((folder / APPEND_ONLY_DIR).iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            found.append(StoredFile(f"{APPEND_ONLY_DIR}/{path.name}", os.fstat(file.fileno()).st_size, digest))
    sync_directory(folder / APPEND_ONLY_DIR)
    return found


def sync_directory(folder: Path) -> None:
    """Make the names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_once(source: Path, target: Path) -> None:
    lines = [line for line in (source / MANIFEST).read_text().splitlines() if _fields(line).get("type") != "h"]
    names = [fields["file"] for fields in map(_fields, lines) if "file" in fields]
    target.mkdir(mode=0o700)
    with _all_open(source, names) as files:
        # Sizes are taken after the manifest was read, and before the first byte is copied.
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        for name, file, size in zip(names, files, sizes, strict=True):
            with _new_file(target / name) as copy:
                _copy_bytes(file, copy, size)
    with _new_file(target / MANIFEST) as copy:
        copy.write("".join(f"{line}\n" for line in lines).encode())


@contextlib.contextmanager
def _all_open(folder: Path, names: list[str]) -> Iterator[list[BinaryIO]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context((folder / name).open("rb", buffering=0)) for name in names]


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _copy_bytes(file: BinaryIO, copy: BinaryIO, size: int) -> None:
    left = size
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        copy.write(chunk)
        left -= len(chunk)


def _fields(line: str) -> dict[str, str]:
    """A line of a manifest, `file NAME seq NUMBER type b|i|h`, as a mapping; empty for a comment."""
    words = [] if line.startswith("#") else shlex.split(line)
    return dict(zip(words[::2], words[1::2], strict=False))
