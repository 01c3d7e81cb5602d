"""A backup of an embedded store: a directory with its append-only files, the files of the shelf if there is one, and
`backup.json`, which describes them.

The files are copied while the store writes.

`backup.json` is written last. A directory without it is not a complete backup.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from deferd.store.data_dir import APPEND_ONLY_DIR, SHELF_DIR, DataDirectory
from deferd.store.disk import sync_directory
from deferd.store.preflight import StoreRefused

DESCRIPTION = "backup.json"
FORMAT = 1
FORMAT_WITH_SHELF = 2
"""Releases that know no shelf would restore such a backup without the jobs on it."""
_FILES_OF_SHELF = re.compile(r"CURRENT|IDENTITY|(?:MANIFEST|OPTIONS)-\d+|\d+\.(?:sst|log)|rocksdict-config\.json")
_SPARE_FILES = 64
"""Files that a process has open for other purposes."""


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
        has_shelf = any(file.directory == SHELF_DIR for file in self.files)
        format_ = FORMAT_WITH_SHELF if has_shelf else FORMAT
        return {"format": format_, **asdict(self), "files": [file._asdict() for file in self.files]}


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
        if description.pop("format") not in {FORMAT, FORMAT_WITH_SHELF}:
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
    for name in sorted({APPEND_ONLY_DIR, *(file.directory for file in backup.files)}):
        (target / name).mkdir(mode=0o700)
    for file in backup.files:
        path = directory / file.directory / Path(file.name).name
        if not path.is_file():
            raise StoreRefused(f"the backup in {directory} lacks its file {file.name}: restore another backup")
        copy = target / file.directory / path.name
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

    @property
    def directory(self) -> str:
        """The one of the two directories that the file belongs to; nothing else in its name counts."""
        is_of_shelf = self.name.startswith(f"{SHELF_DIR}/") and _FILES_OF_SHELF.fullmatch(Path(self.name).name)
        return SHELF_DIR if is_of_shelf else APPEND_ONLY_DIR


class FilesChanged(Exception):
    """What was to be copied together has changed meanwhile: it must be opened again."""


def has_data(data_dir: Path) -> bool:
    """Whether the directory has data of a store."""
    return (data_dir / APPEND_ONLY_DIR / MANIFEST).exists()


def copy_data(
    source: DataDirectory,
    target: Path,
    still_files: Callable[[DataDirectory], AbstractContextManager[Path | None]] = lambda _: contextlib.nullcontext(),
) -> None:
    """Copy the data of a store, which may be running, into the directory `target`, readable by the owner only.

    With a shelf, its files are copied too, from the folder that `deferd.shelf.still_files` gives. In that block no job
    moves, and the sizes of the store's files are read. So a job is in the store or on the shelf in the copy, too.

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
        # A rewrite deletes files after the manifest was read.
        with contextlib.suppress(FileNotFoundError, FilesChanged):
            _copy_once(source, target, still_files)
            # A restarting store truncates an incomplete end, so a copy made across a restart is inconsistent.
            if source.store_pid() == store_pid:
                return
        for name in (APPEND_ONLY_DIR, SHELF_DIR):
            shutil.rmtree(target / name, ignore_errors=True)
    raise StoreRefused(
        f"the files in {source.path / APPEND_ONLY_DIR} changed {_ATTEMPTS} times while they were being copied: try "
        "again"
    )


def sync_files(parent: Path) -> list[StoredFile]:
    """Sync the files in `parent` to disk, and the directories that have them. Return them with sizes and checksums."""
    found = []
    for directory in (parent / APPEND_ONLY_DIR, parent / SHELF_DIR):
        if not directory.exists():
            continue
        for path in sorted(directory.iterdir()):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
                found.append(StoredFile(f"{directory.name}/{path.name}", os.fstat(file.fileno()).st_size, digest))
        sync_directory(directory)
    return found


def leave_files_of_shelf(directory: Path) -> None:
    """Remove from the files of a shelf what need not be kept, and deny other users access to the others."""
    for path in directory.iterdir():
        if _FILES_OF_SHELF.fullmatch(path.name):
            path.chmod(0o600)
        else:
            path.unlink()


def _copy_once(
    source: DataDirectory,
    target: Path,
    still_files: Callable[[DataDirectory], AbstractContextManager[Path | None]],
) -> None:
    data = source.path / APPEND_ONLY_DIR
    with contextlib.ExitStack() as opened:
        with still_files(source) as shelf:
            of_shelf = [] if shelf is None else _open_shelf(shelf, opened)
            lines = _lines_of_manifest(data)
            names = [fields["file"] for fields in map(_fields, lines) if "file" in fields]
            files = opened.enter_context(_all_open(data, names))
            # Sizes are read after the manifest and before the first byte is copied.
            sizes = [os.fstat(file.fileno()).st_size for file in files]
        (target / APPEND_ONLY_DIR).mkdir(mode=0o700)
        for name, file, size in zip(names, files, sizes, strict=True):
            with _new_file(target / APPEND_ONLY_DIR / name) as copy:
                _copy_bytes(file, copy, size)
        if shelf is not None:
            (target / SHELF_DIR).mkdir(mode=0o700)
        for name, file, size in of_shelf:
            with _new_file(target / SHELF_DIR / name) as copy:
                _copy_bytes(file, copy, size)
    with _new_file(target / APPEND_ONLY_DIR / MANIFEST) as copy:
        copy.write("".join(f"{line}\n" for line in lines).encode())


def _lines_of_manifest(data: Path) -> list[str]:
    manifest = (data / MANIFEST).read_text(encoding="utf-8")
    return [line for line in manifest.splitlines() if _fields(line).get("type") != "h"]


def _open_shelf(shelf: Path, opened: contextlib.ExitStack) -> list[tuple[str, BinaryIO, int]]:
    """Open the files of a shelf; returns their names and sizes with them.

    They can be read when the process of the shelf has removed them: it replaces files, and appends to no old one.
    """
    names = sorted(path.name for path in shelf.iterdir() if _FILES_OF_SHELF.fullmatch(path.name))
    _allow_open_files(len(names) + _SPARE_FILES)
    files = opened.enter_context(_all_open(shelf, names))
    return [(name, file, os.fstat(file.fileno()).st_size) for name, file in zip(names, files, strict=True)]


def _allow_open_files(needed: int) -> None:
    """Raise the limit of this process on open files, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:
        with contextlib.suppress(OSError, ValueError):  # macOS has a maximum that it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


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
