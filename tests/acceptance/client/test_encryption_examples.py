"""The examples of docs/encryption.md in other languages read what Python writes, and write what it reads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deferd import Cipher
from tests.go_toolchain import go
from tests.programs import require_program

pytestmark = pytest.mark.slow(seconds=3)

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "encryption"
VECTORS: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text())
BUILD_S = 280.0
RUN_S = 60.0


@pytest.fixture(params=["go", "node"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    program = require_program(request.param)
    if request.param == "node":
        return [program, str(FOLDER / "cipher.mjs")]
    built = tmp_path / "cipher"
    go(FOLDER, "build", "-o", str(built), "cipher.go", timeout_s=BUILD_S)
    return [str(built)]


def test_an_example_keeps_the_test_vectors(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# first comes the key that encrypts\n" + "\n".join(VECTORS["keys"]))
    valid, invalid, other = VECTORS["valid"], VECTORS["invalid"], VECTORS["not_encrypted"]
    calls = [{"do": "decrypt", **one, "value": one["encrypted"]} for one in (*valid, *invalid)]
    calls += [{"do": "decrypt", **one} for one in other]
    calls += [{"do": "encrypt", **one} for one in valid]
    ran = subprocess.run(
        command,
        input="\n".join(map(json.dumps, calls)),
        env={**os.environ, "DEFERD_CIPHER_KEYS": str(tmp_path / "keys")},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    answers = iter(map(json.loads, ran.stdout.splitlines()))
    assert [one["value"] for one in valid] == [next(answers)["value"] for _ in valid]
    for one in invalid:
        assert next(answers).keys() == {"error"}, one["why"]
    assert [one["value"] for one in other] == [next(answers)["value"] for _ in other]
    cipher = Cipher(*VECTORS["keys"], required=True)
    for one in valid:
        encrypted = next(answers)["value"]
        assert encrypted != one["encrypted"]  # its nonce is another one
        assert cipher.decrypt(encrypted, topic=one["topic"], part=one["part"]) == one["value"]
    assert next(answers, None) is None
