"""A backup of an embedded store: a directory with its append-only files and `backup.json`, which describes them.

The files are copied while the store writes.

`backup.json` is written last. A directory without it is not a complete backup.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from deferd.store.data_dir import APPEND_ONLY_DIR, DataDirectory
from deferd.store.disk import sync_directory
from deferd.store.preflight import StoreRefused

DESCRIPTION = "backup.json"
FORMAT = 1


@dataclass(frozen=True)
class Backup:
    """The description of a backup. `counts` are jobs by state, or None when it was not verified by loading it."""

    deferd: str
    store: str | None
    taken_at: str
    shards: int | None
    topics: int | None
    counts: Mapping[str, int] | None
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """The content of `backup.json`."""
        return {"format": FORMAT, **asdict(self), "files": [file._asdict() for file in self.files]}


def write_backup(directory: Path, backup: Backup) -> None:
    """Complete the backup whose files are already in `directory`, and sync it to disk."""
    unfinished = directory / f"{DESCRIPTION}.unfinished"
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(backup.to_json(), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)
        unfinished.rename(directory / DESCRIPTION)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(directory)
    with contextlib.suppress(PermissionError):  # a parent directory that may be traversed but not read
        sync_directory(directory.parent)


def read_backup(directory: Path) -> Backup:
    """Read the description of the backup in `directory`, without its files.

    Raises:
        StoreRefused: it is not a complete backup, or has a format that this version does not know.
    """
    try:
        description = json.loads((directory / DESCRIPTION).read_text(encoding="utf-8"))
        if description.pop("format") != FORMAT:
            raise StoreRefused(
                f"the backup in {directory} was made by a newer deferd: restore it with deferd "
                f"{description.get('deferd')}"
            )
        files = tuple(StoredFile(**file) for file in description.pop("files"))
        return Backup(**description, files=files)
    except FileNotFoundError as exc:
        raise StoreRefused(
            f"{directory} is not a complete backup: it has no {DESCRIPTION}, which `deferd backup` writes last"
        ) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise StoreRefused(f"{directory / DESCRIPTION} is damaged: {exc}; restore another backup") from exc


def copy_backup(directory: Path, backup: Backup, target: Path) -> None:
    """Copy the files of a backup into the directory `target`, sync them to disk and verify their checksums.

    Raises:
        StoreRefused: a file is missing or damaged.
        OSError: a file cannot be read or written.
    """
    (target / APPEND_ONLY_DIR).mkdir(mode=0o700)
    for file in backup.files:
        path = directory / APPEND_ONLY_DIR / Path(file.name).name
        if not path.is_file():
            raise StoreRefused(f"the backup in {directory} lacks its file {file.name}: restore another backup")
        copy = target / APPEND_ONLY_DIR / path.name
        copy.touch(mode=0o600)
        shutil.copyfile(path, copy)
    for file, copied in zip(sorted(backup.files), sync_files(target), strict=True):
        if file != copied:
            raise StoreRefused(
                f"{file.name} in the backup {directory} is damaged: it has {copied.size} bytes and SHA-256 "
                f"{copied.sha256[:12]}..., but was saved with {file.size} bytes and {file.sha256[:12]}...: restore "
                "another backup"
            )


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

    A store keeps a base file, the increments after it and a manifest that names the files in use. A copy needs no
    cooperation of the store, and rewrites may go on:

    * The manifest is replaced by a rename, and each version of it names all the data. Before a rewrite starts a new
      increment, the store flushes its buffer to the old one.
    * All files but the last increment are complete. A file that a rewrite deletes can still be read while it is open.
    * With `appendfsync always` a change is in its file before it is acknowledged. So up to the sizes that the files
      have after the manifest was read, they hold every change that was acknowledged before.
    * The last increment may end in the middle of a command or a transaction. Loading truncates such an end.

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
