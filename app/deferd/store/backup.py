"""A backup of an embedded store: a directory with its append-only files and `backup.json`, which describes them.

`backup.json` is written last. A directory without it is not a complete backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deferd.store.append_only import StoredFile, sync_files
from deferd.store.data_dir import APPEND_ONLY_DIR
from deferd.store.disk_sync import sync_directory
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
