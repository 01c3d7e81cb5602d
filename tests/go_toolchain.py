"""The Go toolchain, for tests of programs in Go: what is compiled of Go's library, in half a minute, is shared.

`python3 -m tests.go_toolchain` compiles most of it, so that `.ci/run` can do this while a core is idle.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

_FLAGS = {"GOFLAGS": "'-gcflags=all=-N -l -dwarf=false'"}
"""Without inlining, which takes a third of the compiler's time, and optimizations and what debuggers need, which take a
tenth of the rest. What has other flags shares nothing.
"""
_LOCK = Path(tempfile.gettempdir()) / "deferd-go-builds.lock"


def go(folder: Path, *arguments: str, timeout_s: float) -> str:
    """The standard output of a `go` command, which must succeed; one at a time, of all test processes."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["go", *arguments],
            cwd=folder,
            env={**os.environ, **_FLAGS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    assert done.returncode == 0, f"go {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    generator = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen"
    go(Path(__file__).parent / "acceptance/api/go", "build", "-o", os.devnull, generator, timeout_s=600)
