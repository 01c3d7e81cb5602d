"""The receivers of docs/push.md verify real signatures, in each language."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deferd.contract.webhook_signature import secret_key, signatures
from tests.go_toolchain import go

PAGE = (Path(__file__).parents[3] / "docs/push.md").read_text(encoding="utf-8")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "A" * 32
GO_S = 280.0
BODY = '{"text": "Grüße 👋"}'
GO_MAIN = """
package webhook

import (
	"encoding/json"
	"net/http"
	"os"
	"testing"
)

func TestCases(t *testing.T) {
	var cases []struct {
		Headers map[string]string
		Body    string
		Genuine bool
	}
	text, err := os.ReadFile("cases.json")
	if err != nil || json.Unmarshal(text, &cases) != nil || len(cases) < 5 {
		t.Fatal("no cases")
	}
	for number, one := range cases {
		header := http.Header{}
		for name, value := range one.Headers {
			header.Set(name, value)
		}
		if IsGenuine("SECRET", header, []byte(one.Body)) != one.Genuine {
			t.Errorf("case %d is wrong", number)
		}
	}
}
""".replace("SECRET", SECRET)
NODE_MAIN = """
for (const one of JSON.parse(require("node:fs").readFileSync("cases.json", "utf8")))
  if (isGenuine("SECRET", one.headers, Buffer.from(one.body)) !== one.genuine) throw new Error(JSON.stringify(one));
""".replace("SECRET", SECRET)


def code_of(language: str) -> str:
    """The receiver of the page in a language."""
    section = PAGE.partition("## Verify the signature")[2]
    [code] = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(code)


def cases() -> list[dict[str, Any]]:
    """Requests, and whether they are genuine."""
    now = int(time.time())

    def case(genuine: bool, *secrets: str, at: int = now, body: str = BODY, **changed: str) -> dict[str, Any]:
        signed = signatures(map(secret_key, secrets), "msg_1", at, BODY.encode())
        headers = {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signed}
        return {"headers": headers | {f"webhook-{name}": value for name, value in changed.items()}, "body": body} | {
            "genuine": genuine
        }

    return [
        case(True, SECRET),
        case(True, OTHER, SECRET),
        case(True, SECRET, OTHER),
        case(False, OTHER),
        case(False, SECRET, body=BODY + " "),
        case(False, SECRET, id="msg_2"),
        case(False, SECRET, at=now - 400),
        case(False, SECRET, at=now + 400),
        case(False, SECRET, signature="v1,"),
        case(False, SECRET, signature=""),
    ]


def test_the_receiver_in_python_verifies() -> None:
    scope: dict[str, Any] = {}
    exec(code_of("python"), scope)  # noqa: S102 (the code of the page)
    is_genuine: Callable[[str, dict[str, str], bytes], bool] = scope["is_genuine"]
    for one in cases():
        assert is_genuine(SECRET, one["headers"], one["body"].encode()) is one["genuine"], one


@pytest.mark.slow
@pytest.mark.needs("node")
def test_the_receiver_in_node_verifies(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(cases()))
    (tmp_path / "run.js").write_text(code_of("js") + NODE_MAIN)
    subprocess.run(["node", "run.js"], cwd=tmp_path, check=True, timeout=50)


@pytest.mark.slow
@pytest.mark.needs("go")
def test_the_receiver_in_go_verifies(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(cases()))
    (tmp_path / "webhook.go").write_text(code_of("go"))
    (tmp_path / "webhook_test.go").write_text(GO_MAIN)
    (tmp_path / "go.mod").write_text("module webhook\n\ngo 1.21\n")
    go(tmp_path, "test", "./...", timeout_s=GO_S)
