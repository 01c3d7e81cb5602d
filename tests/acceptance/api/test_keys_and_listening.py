"""Keys of a running service: reloads, limits, audit log; and where a service without keys listens."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from deferd.api.auth.api_keys import Bounds, hash_of, parse_keys
from deferd.client import Client
from deferd.contract.errors import Forbidden, Unauthorized
from deferd.server.serve_context import listen
from tests.acceptance.api.keyed_service import KeysFile, audit_lines, call, keys_of_every_kind
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import WireResponse
from tests.preloaded import run_preloaded
from tests.waiting import wait_until

START_S = 30.0
WITHIN_S = 10.0


def serve(*flags: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a service that does not start."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DEFERD_")}
    words = ("serve", "--port", "0", "--data-dir", str(folder / "data"), *flags)
    return run_preloaded(*words, environment={**bare, **environment}, timeout=START_S)


def refused(*flags: str, folder: Path, **environment: str) -> str:
    """The one log line of a service that cannot start; its exit code is 1."""
    done = serve(*flags, folder=folder, **environment)
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.splitlines()
    assert not (folder / "data" / "valkey.log").exists(), "its store was started before the error was found"
    return line


def status(service: ServiceProcess, token: str) -> int:
    return httpx.get(f"{service.url}/topics", headers={"Authorization": f"Bearer {token}"}, verify=NO_TLS).status_code


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "::ffff:0.0.0.0"])  # noqa: S104 (it is refused)
def test_without_keys_it_refuses_addresses_that_others_can_reach(tmp_path: Path, host: str) -> None:
    line = refused("--host", host, folder=tmp_path)
    assert f"--host (DEFERD_HOST) is {host}, which other machines can reach, and no key is required" in line
    for way_out in ("--keys-file (DEFERD_KEYS_FILE)", "DEFERD_KEYS", "deferd key new", "127.0.0.1", "--insecure"):
        assert way_out in line


def test_without_keys_it_listens_on_localhost(tmp_path: Path) -> None:
    with running_service("--host", "localhost", data_dir=tmp_path) as service:
        assert httpx.get(f"http://localhost:{service.port}/topics", verify=NO_TLS).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1", "::1", "::ffff:127.0.0.1"])
def test_without_keys_it_listens_on_every_form_of_loopback(host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(host, 0, allow_public=False) as listener:
        assert listener.getsockname()[1] > 0


def test_with_keys_it_listens_everywhere(tmp_path: Path) -> None:
    keys = keys_of_every_kind(tmp_path / "keys.toml")
    with running_service("--host", "0.0.0.0", "--keys-file", str(keys.path), data_dir=tmp_path) as service:  # noqa: S104
        assert "WARNING" not in service.lines[0]
        assert httpx.get(f"{service.url}/topics", verify=NO_TLS).status_code == 401
        assert status(service, keys.tokens["read"]) == 200


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_keys_can_be_set_in_the_environment(tmp_path: Path, workers: int) -> None:
    keys = keys_of_every_kind(tmp_path / "unused.toml")
    flags = ("--workers", str(workers))
    with running_service(*flags, DEFERD_KEYS=keys.text(), data_dir=tmp_path) as service:
        for _ in range(4):
            assert status(service, keys.tokens["read"]) == 200
            assert status(service, "unknown") == 401


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[key", "is not valid TOML (at "),
        ("", "is invalid: it has 0 keys"),
        ('[[key]]\nname = "a"', "invalid: key 1 (a): `hash`"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text, encoding="utf-8")
    line = refused("--keys-file", str(file), folder=tmp_path)
    assert f"--keys-file (DEFERD_KEYS_FILE) {file} is " in line
    assert message in line
    if text:
        assert message in refused(DEFERD_KEYS=text, folder=tmp_path)


def test_keys_that_are_missing_are_refused_at_the_start(tmp_path: Path) -> None:
    line = refused("--keys-file", str(tmp_path / "none.toml"), "--insecure", folder=tmp_path)
    assert "none.toml is not readable: No such file" in line


@pytest.mark.slow
def test_a_changed_file_applies_without_a_restart(tmp_path: Path) -> None:
    keys, workers = keys_of_every_kind(tmp_path / "keys.toml"), 2
    flags = ("--keys-file", str(keys.path), "--workers", str(workers))
    with running_service(*flags, data_dir=tmp_path) as service:

        def gets_status(name: str, wanted: int) -> bool:  # new connections reach one worker or the other
            return all(status(service, keys.tokens[name]) == wanted for _ in range(8))

        assert gets_status("read", 200)
        keys.add("late", "read")
        wait_until(lambda: gets_status("late", 200), WITHIN_S, "the new key is known")
        keys.remove("read")
        wait_until(lambda: gets_status("read", 401), WITHIN_S, "the old key is no longer known")
        left = f"{keys.path.read_text().count('[[key]]')} keys were reloaded"
        wait_until(lambda: service.output().count(left) == workers, WITHIN_S, "every process has noticed that")

        keys.write("[[key]]\n")
        error_line = "the keys stay as they were: --keys-file"
        wait_until(lambda: service.output().count(error_line) == workers, WITHIN_S, "it logs the error")
        keys.path.unlink()
        wait_until(
            lambda: service.output().count(error_line) == 2 * workers, WITHIN_S, "it logs that the file is missing"
        )
        assert gets_status("late", 200)
        assert gets_status("read", 401)

        keys.add("later", "read")
        wait_until(lambda: gets_status("later", 200), WITHIN_S, "it continues to read the file")
        assert service.output().count(error_line) == 2 * workers
    assert not [token for token in keys.tokens.values() if token in service.output()]


@pytest.mark.slow
def test_workers_that_are_replaced_while_the_keys_file_is_broken_serve_with_the_last_good_keys(tmp_path: Path) -> None:
    keys = keys_of_every_kind(tmp_path / "keys.toml")
    flags = ("--keys-file", str(keys.path), "--workers", "2", "--log-level", "debug")
    with running_service(*flags, data_dir=tmp_path) as service:
        keys.remove("put")
        reread = "reloaded the keys and certificate files for new server processes"
        wait_until(lambda: reread in service.output(), WITHIN_S, "the supervisor has read the file again")
        for times, broken in enumerate(("[[key]]\n", None), start=1):
            if broken is None:
                keys.path.unlink()
            else:
                keys.write(broken)
            service.kill_server_processes()
            assert status(service, keys.tokens["read"]) == 200
            assert status(service, keys.tokens["put"]) == 401
            assert status(service, "unknown") == 401
            service.wait_logged("the keys stay as they were: --keys-file", 2 * times)
        assert "did not start to serve" not in service.output()

        keys.remove("read")
        keys.add("late", "read")
        wait_until(lambda: status(service, keys.tokens["late"]) == 200, WITHIN_S, "they continue to read the file")
        wait_until(lambda: status(service, keys.tokens["read"]) == 401, WITHIN_S, "they continue to read the file")
    assert not [token for token in keys.tokens.values() if token in service.output()]


def test_at_the_first_start_there_are_no_last_good_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[[key", encoding="utf-8")
    assert "is not valid TOML" in refused("--keys-file", str(file), "--workers", "2", folder=tmp_path)


async def test_a_key_over_its_rate_gets_a_retry_after_and_others_are_served(tmp_path: Path) -> None:
    keys = keys_of_every_kind(tmp_path / "keys.toml")
    for name in ("plain", "asgi"):
        keys.add(name, "read", more="requests_per_second = 0.1\nburst = 3")
    with running_service("--keys-file", str(keys.path), "--log-format", "json", data_dir=tmp_path) as service:

        async def send(way: str, path: str, name: str) -> WireResponse:
            return await call(service, "GET", path, token=keys.tokens[name], through_asgi=way == "asgi")

        for way in ("plain", "asgi"):
            passed = [await send(way, path, way) for path in ("/topics", "/topics/none", "/topics/none/pop")]
            assert [response.status for response in passed] == [200, 404, 403]
            assert [response.headers["ratelimit-policy"] for response in passed] == ['"requests";q=3;w=30'] * 3
            assert [re.sub(r"t=\d+", "t", response.headers["ratelimit"]) for response in passed] == [
                f'"requests";r={left};t' for left in (2, 1, 0)
            ]
            for path in ("/topics", "/openapi.json", "/nowhere"):
                limited = await send(way, path, way)
                assert (limited.status, limited.json()["code"]) == (429, "rate_limited")
                assert 1 <= int(limited.headers["retry-after"]) <= 10
                assert limited.headers["ratelimit-policy"] == '"requests";q=3;w=30'
                assert limited.headers["ratelimit"].startswith('"requests";r=0;t=')
            other = await send(way, "/topics", "read")
            assert other.status == 200
            assert "ratelimit" not in other.headers
        wait_until(lambda: len(audit_lines(service)) >= 2, WITHIN_S, "the audit log is written")
    assert [(line["key"], line["outcome"]) for line in audit_lines(service)] == [
        ("plain", "forbidden"),
        ("asgi", "forbidden"),
    ]


@pytest.mark.slow
async def test_a_reload_does_not_refill_a_rate_limit(tmp_path: Path) -> None:
    keys = KeysFile(tmp_path / "keys.toml")
    keys.add("slow", "read", more="requests_per_second = 0.001\nburst = 2")
    with running_service("--keys-file", str(keys.path), data_dir=tmp_path) as service:
        assert [status(service, keys.tokens["slow"]) for _ in range(3)] == [200, 200, 429]
        keys.add("other", "read")
        wait_until(lambda: status(service, keys.tokens["other"]) == 200, WITHIN_S, "the file is read")
        assert status(service, keys.tokens["slow"]) == 429
        keys.add("slow", "read", more="requests_per_second = 1000")
        wait_until(lambda: status(service, keys.tokens["slow"]) == 200, WITHIN_S, "the new limit applies")


@pytest.mark.slow
def test_a_revoked_key_is_refused_on_an_open_connection(tmp_path: Path) -> None:
    keys = keys_of_every_kind(tmp_path / "keys.toml")
    with (
        running_service("--keys-file", str(keys.path), data_dir=tmp_path) as service,
        httpx.Client(
            base_url=service.url, headers={"Authorization": f"Bearer {keys.tokens['read']}"}, verify=NO_TLS
        ) as client,
    ):
        assert client.get("/topics").status_code == 200
        keys.remove("read")
        wait_until(lambda: client.get("/topics").status_code == 401, WITHIN_S, "the key is no longer known")


@pytest.mark.slow
@pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])
async def test_a_waiting_pop_gets_no_job_once_its_key_is_no_longer_accepted(
    tmp_path: Path, topic: str, through_asgi: bool
) -> None:
    keys = keys_of_every_kind(tmp_path / "keys.toml")
    names = {"revoked": 401, "other-topics": 403, "other-scope": 403, "as-before": 200}
    for name in names:
        keys.add(name, "pop")
    with running_service("--keys-file", str(keys.path), "--log-format", "json", data_dir=tmp_path) as service:

        async def send(name: str, method: str, path: str, body: Any = None) -> WireResponse:
            return await call(service, method, path, body, token=keys.tokens[name], through_asgi=through_asgi)

        async def is_accepted(name: str) -> bool:
            return (await send(name, "GET", f"/topics/{topic}.none/pop?wait=0")).status == 200

        waiting = {
            name: asyncio.create_task(send(name, "GET", f"/topics/{topic}.{name}/pop?wait=50")) for name in names
        }
        async with asyncio.timeout(WITHIN_S):
            while b"deferd_waiting_pops 4.0" not in (await send("read", "GET", "/metrics")).body:
                await asyncio.sleep(0.02)
            keys.remove("revoked")
            keys.add("other-topics", "pop", topics=("elsewhere.*",))
            keys.add("as-before", "pop")
            keys.add("other-scope", "put")  # the last change: once it applies, all do
            while await is_accepted("other-scope"):
                await asyncio.sleep(0.02)
            for name in names:
                await send("put", "POST", "/jobs", {"topic": f"{topic}.{name}", "id": name})
            responses = {name: await task for name, task in waiting.items()}
        assert names == {name: response.status for name, response in responses.items()}
        assert ["as-before"] == [job["id"] for job in responses["as-before"].json()["jobs"]]
        for name in ("revoked", "other-topics", "other-scope"):
            [job] = (await send("pop", "GET", f"/topics/{topic}.{name}/pop?wait=5")).json()["jobs"]
            assert (name, 1) == (job["id"], job["attempt"])

        def refusals() -> set[tuple[str, str]]:
            return {(line["key"], line["outcome"]) for line in audit_lines(service) if f"{topic}.none" != line["topic"]}

        expected = {("revoked", "unauthorized"), ("other-topics", "forbidden"), ("other-scope", "forbidden")}
        wait_until(lambda: expected <= refusals(), WITHIN_S, "the audit log is written")


def test_admin_actions_and_refusals_are_recorded_without_keys_too(tmp_path: Path) -> None:
    with running_service("--log-format", "json", data_dir=tmp_path) as service:
        httpx.post(f"{service.url}/jobs", json={"topic": "t"}, verify=NO_TLS)
        httpx.post(f"{service.url}/topics/t/pause", verify=NO_TLS)
        httpx.post(f"{service.url}/topics/none/resume", verify=NO_TLS)
        httpx.post(f"{service.url}/topics/none/redrive", verify=NO_TLS)
        httpx.get(f"{service.url}/topics/t", verify=NO_TLS)
        httpx.delete(f"{service.url}/topics/t", verify=NO_TLS)
        httpx.post(f"{service.url}/topics/t/pop", headers={"Host": "rebound.example.com"}, verify=NO_TLS)
        wait_until(lambda: len(audit_lines(service)) >= 3, WITHIN_S, "the audit log is written")
        assert audit_lines(service)[-1]["topic"] == "t"
        lines = [(line["key"], line["call"], line["outcome"], line["client"]) for line in audit_lines(service)]
    assert lines == [
        (None, "POST /topics/{topic}/pause", "done", "127.0.0.1"),
        (None, "DELETE /topics/{topic}", "done", "127.0.0.1"),
        (None, "POST /topics/{topic}/pop", "forbidden", "127.0.0.1"),
    ]


def test_an_admin_action_without_a_response_of_the_store_is_recorded_as_unknown(tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--store-timeout", "0.3")
    with running_service(*flags, data_dir=tmp_path) as service:
        store_pid = service.store_pid()
        assert store_pid is not None
        os.kill(store_pid, 19)
        try:
            assert httpx.post(f"{service.url}/topics/t/pause", timeout=20, verify=NO_TLS).status_code == 503
        finally:
            os.kill(store_pid, 18)
        wait_until(lambda: bool(audit_lines(service)), WITHIN_S, "the audit log is written")
        assert [line["outcome"] for line in audit_lines(service)] == ["unknown"]


def new_key(*flags: str) -> tuple[str, str]:
    """The entry and the token that `deferd key new` prints."""
    done = run_preloaded("key", "new", *flags, environment=os.environ)
    done.check_returncode()
    return done.stdout, done.stderr.rsplit(maxsplit=1)[-1]


def test_a_new_key_works_as_it_is_printed_until_it_is_revoked(tmp_path: Path) -> None:
    shop, shop_token = new_key("--name", "shop", "--scope", "put", "--scope", "cancel", "--topic", "orders.*")
    slow, slow_token = new_key("--name", "slow", "--scope", "read", "--requests-per-second", "0.01", "--burst", "1")
    file = tmp_path / "keys.toml"
    file.write_text(shop + slow, encoding="utf-8")
    with running_service("--keys-file", str(file), data_dir=tmp_path) as service:
        with Client(service.url, key=shop_token) as client:
            client.put("orders.close", id="o-1", delay=60)
            client.cancel("orders.close", "o-1")
            with pytest.raises(Forbidden):
                client.put("other")
        with Client(service.url, key="unknown") as client, pytest.raises(Unauthorized):
            client.put("orders.close")
        assert [status(service, slow_token) for _ in range(2)] == [200, 429]
        assert status(service, shop_token) == 403  # known, but without the scope read
        assert status(service, shop_token) == 403  # known, but without the scope read
        revoke = ("key", "revoke", "shop", "--keys-file", str(file))
        run_preloaded(*revoke, environment=os.environ).check_returncode()
        wait_until(lambda: status(service, shop_token) == 401, WITHIN_S, "the key is refused")
        assert status(service, slow_token) == 429


def test_a_new_key_has_the_limits_of_its_flags() -> None:
    bounds = {"max_jobs": 9, "max_waiting_pops": 5, "max_body_bytes": 700, "max_batch": 3, "max_depth": 4}
    flags = [word for name, bound in bounds.items() for word in (f"--{name.replace('_', '-')}", str(bound))]
    entry, _ = new_key("--name", "shop", "--scope", "put", *flags)
    [key] = parse_keys(entry)
    assert Bounds(**bounds) == key.bounds


def test_new_keys_differ_and_only_the_hash_goes_into_the_entry() -> None:
    made = [new_key("--name", "shop", "--scope", "put") for _ in range(2)]
    assert len({token for _, token in made}) == 2
    for entry, token in made:
        assert token not in entry
        assert hash_of(token) in entry
        assert [key.name for key in parse_keys(entry)] == ["shop"]
        assert len(token.removeprefix("deferd_")) == 43  # 32 bytes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--name", "a b", "--scope", "put"), "`name` must be 1 to 64"),
        (("--name", "a", "--scope", "put", "--topic", "a b"), "`topics` must be a list of patterns"),
        (("--name", "a", "--scope", "put", "--burst", "5"), "`burst` needs `requests_per_second`"),
        (("--name", "a", "--scope", "write"), "--scope: 'write' is not one of"),
        (("--name", "a"), "--scope"),
    ],
)
def test_a_key_that_the_service_would_refuse_is_not_made(flags: tuple[str, ...], message: str) -> None:
    done = run_preloaded("key", "new", *flags, environment=os.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
