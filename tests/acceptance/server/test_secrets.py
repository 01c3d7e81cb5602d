"""No secret is shown: in no log at any level, no response, no metric, no command, no repr."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from redis.exceptions import RedisError

from deferd.client import AsyncClient, Client
from deferd.client.errors import Unreachable
from deferd.contract.errors import DeferdError
from deferd.server.serve_context import ServeContext
from deferd.settings import Settings, SettingsError, load_settings
from deferd.store.connection import connect
from deferd.store.url import parse_store_url
from deferd.worker import Worker
from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import running_service
from tests.integration.store.store_servers import StoreServer
from tests.preloaded import run_preloaded
from tests.waiting import wait_until

USER = "jobs-user-4711"
PASSWORD = "open/se:same@7%9"
"""With all that is written differently inside of a URL."""
SECRETS = (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), PASSWORD.partition("/")[2], USER)


def shown(text: Any, secrets: Iterable[str]) -> list[str]:
    """Those secrets that the text shows."""
    return [secret for secret in secrets if secret in str(text)]


def store_url(port: int) -> str:
    return f"redis://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "keys_are_in", "log_format"), [("1", "environment", "console"), ("2", "file", "json")]
)
def test_a_service_shows_no_secret(tmp_path: Path, workers: str, keys_are_in: str, log_format: str) -> None:
    keys = KeysFile(tmp_path / "keys.toml")
    keys.add("all", "admin")
    token, unknown = keys.tokens["all"], secrets.token_urlsafe(32)
    tls = TlsFiles(tmp_path / "tls")
    hidden = [*SECRETS, token, unknown, keys.text().split('"')[3], *tls.key.read_text().split("\n")[1:-2]]
    environment = {"DEFERD_LOG_LEVEL": "debug", "DEFERD_LOG_FORMAT": log_format, "DEFERD_WORKERS": workers}
    environment |= (
        {"DEFERD_KEYS": keys.text()} if keys_are_in == "environment" else {"DEFERD_KEYS_FILE": str(keys.path)}
    )
    acl = (f"user {USER} on >{PASSWORD} ~* &* +@all", "user default on nopass -@all +ping +info +shutdown")
    responses: list[str] = []

    with StoreServer(tmp_path / "store", lines=acl) as store:
        environment["DEFERD_REDIS_URL"] = store_url(store.port)
        with running_service(*tls.flags(), data_dir=tmp_path, **environment) as service:
            client = httpx.Client(base_url=f"https://127.0.0.1:{service.port}", verify=tls.trust(), timeout=20)

            def status(method: str, path: str, authorization: str | None = f"Bearer {token}", json: Any = None) -> int:
                headers = {} if authorization is None else {"Authorization": authorization}
                response = client.request(method, path, headers=headers, json=json)
                responses.append(f"{response.headers}\n{response.text}")
                return response.status_code

            def statuses_of_all_calls() -> set[int]:
                job = {"topic": "orders", "body": 1}
                return {
                    status("POST", "/jobs", json=job),
                    status("POST", "/jobs", json={**job, "unknown": 1}),
                    status("POST", "/jobs/batch", json={"jobs": [job, job]}),
                    status("GET", "/topics/orders/pop?wait=0"),
                    status("GET", "/topics"),
                    status("DELETE", "/topics/orders"),
                    status("GET", "/nowhere"),
                    status("GET", "/openapi.json"),
                    status("GET", "/docs"),
                }

            assert {201, 422, 200, 404} == statuses_of_all_calls()
            for refused in (None, f"Bearer {unknown}", f"Basic {token}", token, f"Bearer {token} {token}"):
                assert 401 == status("GET", "/topics", refused)
                assert 401 == status("GET", "/docs", refused)
            assert 200 == status("GET", "/metrics")
            assert 200 == status("GET", "/readyz", None)
            store.kill()
            assert 503 in statuses_of_all_calls()
            assert 503 == status("GET", "/readyz", None)
            assert 200 == status("GET", "/metrics")
            client.close()
    assert [] == shown("\n".join(responses), hidden)
    assert [] == shown(service.output(), hidden)
    assert "Traceback" not in service.output()
    assert "deferd.audit" in service.output()


@pytest.mark.slow
def test_a_service_that_cannot_start_shows_no_secret(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store", lines=(f"user {USER} on >another ~* &* +@all",)) as store:
        for url in (store_url(store.port), store_url(1), store_url(1).replace(":1/", ":port/"), f"http://{PASSWORD}@h"):
            for words in (["serve", "--log-level", "debug", "--port", "0"], ["config"], ["config", "--json"]):
                done = deferd(*words, folder=tmp_path, DEFERD_REDIS_URL=url, DEFERD_KEY=PASSWORD, DEFERD_KEYS=PASSWORD)
                output = done.stdout + done.stderr
                assert output
                assert [] == shown(output, SECRETS), words


def deferd(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DEFERD_")}
    return run_preloaded(*words, environment={**bare, **environment}, folder=folder, timeout=30)


def test_settings_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_REDIS_URL", store_url(6379))
    monkeypatch.setenv("DEFERD_KEYS", PASSWORD)
    settings = load_settings({})
    for text in (repr(settings), str(settings), settings.model_dump(), settings.model_dump_json(), vars(settings)):
        assert [] == shown(text, SECRETS)
    with pytest.raises(SettingsError) as caught:
        load_settings({"keys_file": "keys.toml", "tick": "never"})
    assert [] == shown(repr(caught.value), SECRETS)
    with pytest.raises(ValueError, match="port") as refused:
        Settings(port=-1)
    assert [] == shown(repr(refused.value), SECRETS)


def test_the_context_of_a_service_shows_no_secret() -> None:
    with socket.socket() as listener:
        assert [] == shown(repr(ServeContext(listener, store_url(6379), "greeting", {})), SECRETS)


async def test_objects_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sentinel = f"redis+sentinel://{USER}:{quote(PASSWORD, safe='')}@h:1/m?sentinel_password={quote(PASSWORD, safe='')}"
    cluster = store_url(1).replace("redis:", "redis+cluster:").replace("/0", "")
    for url in (store_url(1), sentinel, cluster):
        address = parse_store_url(url)
        assert [] == shown(str(address), SECRETS)
        assert [] == shown(repr(address), (PASSWORD, quote(PASSWORD, safe="")))
        store = await connect(url, timeout_s=0.2)
        assert [] == shown(f"{store!r} {store!s}", SECRETS)
        with pytest.raises((RedisError, DeferdError)) as caught:
            await store.call("PING")
        assert [] == shown(f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}", SECRETS)
        await store.close()
    key = "deferd_" + secrets.token_urlsafe(32)
    with Client("http://127.0.0.1:1", key=key, retry_for=0) as client:
        with pytest.raises(Unreachable) as failed:
            client.put("orders", 1)
        assert [] == shown(f"{client!r} {failed.value!r} {failed.value.__cause__!r}", [key])
    async with AsyncClient("http://127.0.0.1:1", key=key) as asynchronous:
        assert [] == shown(repr(asynchronous), [key])
    assert [] == shown(repr(Worker("http://127.0.0.1:1", key=key)), [key])
    assert [] == shown(caplog.text, [*SECRETS, key])


@pytest.mark.slow
def test_a_key_that_a_file_holds_by_mistake_is_not_shown_when_it_is_read_again(tmp_path: Path) -> None:
    keys = KeysFile(tmp_path / "keys.toml")
    keys.add("all", "admin")
    token = keys.tokens["all"]
    flags = ("--keys-file", str(keys.path), "--log-level", "debug")
    with running_service(*flags, data_dir=tmp_path) as service:
        keys.path.write_text(f'[[key]]\nname = "all"\nscopes = ["admin"]\nhash = "{token}"\n', encoding="utf-8")
        wait_until(lambda: "the keys stay as they were" in service.output(), 10, "the keys are read")
    assert [] == shown(service.output(), [token])
