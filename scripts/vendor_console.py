"""Fetch the files of other projects that the console serves, with their licences, into `console/static/vendor`.

npm takes the packages from the registry of its configuration. Each file must have the SHA-256 that is pinned here; to
change a version, change it and the sums, and look at what changed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "app/deferd/console/static/vendor"


class VendoredFile(NamedTuple):
    """A file of an npm package, its name here, and its SHA-256."""

    package: str
    path: str
    name: str
    sha256: str


HTMX, UPLOT = "htmx.org@2.0.11", "uplot@1.6.32"
FILES = (
    VendoredFile(
        HTMX, "dist/htmx.min.js", "htmx.min.js", "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
    ),
    VendoredFile(HTMX, "LICENSE", "htmx.LICENSE", "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38"),
    VendoredFile(
        UPLOT,
        "dist/uPlot.iife.min.js",
        "uPlot.min.js",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    VendoredFile(
        UPLOT, "dist/uPlot.min.css", "uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
    VendoredFile(UPLOT, "LICENSE", "uPlot.LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
)


def main() -> int:
    """Write the files; 1 when one has another sum than is pinned, which is then not written."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for package in sorted({file.package for file in FILES}):
            packed = subprocess.run(  # noqa: S603 (the packages above)
                ["npm", "pack", "--silent", package],  # noqa: S607 (npm as the machine has it)
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
                for file in (one for one in FILES if one.package == package):
                    member = archive.extractfile(f"package/{file.path}")
                    content = b"" if member is None else member.read()
                    found = hashlib.sha256(content).hexdigest()
                    if found == file.sha256:
                        (FOLDER / file.name).write_bytes(content)
                    else:
                        sys.stderr.write(f"{package}: {file.path} has SHA-256 {found}, not {file.sha256}\n")
                        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
