"""A backup of an embedded store: a folder with its append-only files, and `backup.json` that says what they are.

`backup.json` is written last. A folder without it is not a backup, whatever else is in it.
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

from deferd.store.append_only import StoredFile, files_of, sync_directory
from deferd.store.data_dir import APPEND_ONLY_DIR
from deferd.store.preflight import StoreRefused

DESCRIPTION = "backup.json"
FORMAT = 1


@dataclass(frozen=True)
class Backup:
    """What a backup holds. `counts` are jobs by state, and None when the backup was not checked by loading it."""

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
        """What `backup.json` says."""
        return {"format": FORMAT, **asdict(self), "files": [file._asdict() for file in self.files]}


def write_backup(folder: Path, backup: Backup) -> None:
    """Make `folder`, in which the files lie already, a backup; it is on disk when this returns."""
    unfinished = folder / f"{DESCRIPTION}.unfinished"
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(backup.to_json(), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(folder)
        unfinished.rename(folder / DESCRIPTION)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(folder)
    with contextlib.suppress(PermissionError):  # a folder above that may be entered and not be read
        sync_directory(folder.parent)


def read_backup(folder: Path) -> Backup:
    """What the backup in `folder` says about itself; its files are not looked at.

    Raises:
        StoreRefused: there is no finished backup in it, or one of a format that this version does not know.
    """
    try:
        said = json.loads((folder / DESCRIPTION).read_text())
        if said.pop("format") != FORMAT:
            raise StoreRefused(f"the backup in {folder} is of a newer deferd: restore it with {said.get('deferd')}")
        files = tuple(StoredFile(**file) for file in said.pop("files"))
        return Backup(**said, files=files)
    except FileNotFoundError as exc:
        raise StoreRefused(
            f"{folder} is not a finished backup: it has no {DESCRIPTION}, which `deferd backup` writes last"
        ) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise StoreRefused(f"{folder / DESCRIPTION} is damaged: {exc}; restore another backup") from exc


def copy_backup(folder: Path, backup: Backup, target: Path) -> None:
    """Copy the files of a backup into the folder `target`, on disk, and see that they are the ones that were saved.

    Raises:
        StoreRefused: a file is missing, or was changed since.
        OSError: one cannot be read or written.
    """
    (target / APPEND_ONLY_DIR).mkdir(mode=0o700)
    for file in backup.files:
        path = folder / APPEND_ONLY_DIR / Path(file.name).name
        if not path.is_file():
            raise StoreRefused(f"the backup in {folder} lacks its file {file.name}: restore another backup")
        copy = target / APPEND_ONLY_DIR / path.name
        copy.touch(mode=0o600)
        shutil.copyfile(path, copy)
    for file, copied in zip(sorted(backup.files), files_of(target), strict=True):
        if file != copied:
            raise StoreRefused(
                f"{file.name} in the backup {folder} has {copied.size} bytes with SHA-256 {copied.sha256[:12]}..., and "
                f"was saved with {file.size} bytes and {file.sha256[:12]}...: it is damaged, restore another backup"
            )
