"""Keys, scopes, limits and quotas through the Redis protocol are those of HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError, ResponseError

from deferd.api.resp.execution import COMMANDS
from tests.acceptance.api.keyed_service import KeysFile, audit_lines, keys_of_every_kind
from tests.acceptance.resp_calls import packed, redis_client
from tests.acceptance.server.test_resp_connections import connected, read_to_end
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = keys_of_every_kind(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("all", "put", "pop", "cancel", "read", "admin")
    keys.add("orders", "put", "pop", "read", topics=("orders.*",))
    keys.add("slow", "put", "read", more="requests_per_second = 1\nburst = 3")
    keys.add("slow-pops", "pop", more="requests_per_second = 1\nburst = 3")
    keys.add("small", "put", "pop", "read", topics=("small.*",), more="max_jobs_total = 3")
    keys.add("short", "put", "read", more="max_body_bytes = 300\nmax_batch = 2")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--resp-port", "0", "--keys-file", str(keys.path), "--log-format", "json")
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("keyed")) as service:
        yield service


def of_key(service: ServiceProcess, keys: KeysFile, name: str, version: Any = 3) -> Any:
    return redis_client(service, version, password=keys.tokens[name])


def test_without_a_key_only_a_greeting_is_carried_out(service: ServiceProcess, topic: str) -> None:
    words = (b"PING",), (b"SADD", topic.encode(), b"a", b"0"), (b"SPOP", b"t"), (b"HELLO", b"3"), (b"NONE",)
    with connected(service) as connection:
        connection.sendall(b"".join(packed(*some) for some in words) + packed(b"QUIT"))
        lines = read_to_end(connection).splitlines()
    assert [line[:8] for line in lines] == [b"-NOAUTH "] * 5 + [b"+OK"]


def test_without_a_key_every_other_command_is_refused(service: ServiceProcess) -> None:
    refused = COMMANDS.keys() - {b"HELLO", b"AUTH", b"RESET", b"QUIT"}
    with connected(service) as connection:
        connection.sendall(b"".join(packed(name, *[b"t"] * (abs(COMMANDS[name].arity) - 1)) for name in refused))
        connection.sendall(packed(b"RESET") + packed(b"QUIT"))
        lines = read_to_end(connection).splitlines()
    assert [line[:8] for line in lines] == [b"-NOAUTH "] * len(refused) + [b"+RESET", b"+OK"]


def test_a_command_without_a_key_is_in_the_audit_log(service: ServiceProcess) -> None:
    with connected(service) as connection:
        connection.sendall(packed(b"DEL", b"t") + packed(b"NONE") + packed(b"HELLO", b"3") + packed(b"QUIT"))
        read_to_end(connection)
    refused = {("RESP DEL", "unauthorized"), ("RESP", "unauthorized"), ("RESP HELLO", "unauthorized")}
    wait_until(
        lambda: refused <= {(line["call"], line["outcome"]) for line in audit_lines(service)}, 10, "it is logged"
    )


def test_a_greeting_with_an_error_changes_nothing(service: ServiceProcess, keys: KeysFile) -> None:
    hello = (b"HELLO", b"3", b"AUTH", b"default", keys.tokens["all"].encode())
    with connected(service) as connection:
        connection.sendall(packed(*hello, b"SETNAME", b"a b") + packed(*hello, b"NONE") + packed(b"PING"))
        connection.sendall(packed(b"QUIT"))
        lines = read_to_end(connection).splitlines()
    assert [line[:8] for line in lines] == [b"-ERR the", b"-ERR syn", b"-NOAUTH ", b"+OK"]


@pytest.mark.parametrize("data", [b"*11\r\n", b"*2\r\n$4\r\nECHO\r\n$20000\r\n"])
def test_without_a_key_commands_must_be_small(service: ServiceProcess, data: bytes) -> None:
    with connected(service) as connection:
        connection.sendall(data)
        assert read_to_end(connection).startswith(b"-ERR Protocol error")


def test_a_wrong_key_is_refused_and_in_the_audit_log(service: ServiceProcess) -> None:
    with redis_client(service, password="wrong") as client, pytest.raises(AuthenticationError):
        client.ping()
    wait_until(lambda: any(line["call"] == "RESP AUTH" for line in audit_lines(service)), 10, "it is logged")


@pytest.mark.parametrize("version", [2, 3])
def test_a_user_name_is_ignored(service: ServiceProcess, keys: KeysFile, topic: str, version: Any) -> None:
    token = keys.tokens["all"]
    with redis_client(service, version, username="anybody", password=token) as client:
        assert client.sadd(topic, "a" * 100_000, 0) == 1
        assert client.spop(topic) == b"a" * 100_000


SCOPES: dict[str, tuple[Any, ...]] = {
    "put": ("SADD", "TOPIC", "a", 0),
    "pop": ("SPOP", "TOPIC"),
    "read": ("SCARD", "TOPIC"),
    "cancel": ("DEFERD.CANCEL", "TOPIC", "none"),
    "admin": ("DEL", "TOPIC"),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_each_scope_may_do_its_part_only(service: ServiceProcess, keys: KeysFile, topic: str, scope: str) -> None:
    with of_key(service, keys, scope) as client:
        assert client.ping()
        assert client.info()["role"] == "master"
        for needed, words in SCOPES.items():
            command = [topic if word == "TOPIC" else word for word in words]
            if scope in (needed, "admin"):  # which includes all others
                [reply] = _replies(client, command)
                assert not isinstance(reply, ResponseError) or str(reply).startswith("JOB_NOT_FOUND")
            else:
                with pytest.raises(ResponseError, match=f"^FORBIDDEN key '{scope}' does not have scope {needed}"):
                    client.execute_command(*command)


def _replies(client: redis.Redis, *commands: list[Any]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    found: list[Any] = pipeline.execute(raise_on_error=False)
    return found


def test_a_key_sees_and_uses_its_topics_only(service: ServiceProcess, keys: KeysFile) -> None:
    with of_key(service, keys, "all") as client:
        client.sadd("orders.a", "x", 0)
        client.sadd("other", "x", 0)
    with of_key(service, keys, "orders") as client:
        assert client.keys("*") == [b"orders.a"]
        assert client.scan(0) == (0, [b"orders.a"])
        put_with_end = ("DEFERD.PUT", "orders.a", "*", "a", "ONEND", '{"topic": "other"}')
        others = (("SADD", "other", "a", 0), ("SPOP", "other"), ("DEFERD.POP", "other"), ("SCARD", "other"))
        for words in (*others, put_with_end):
            with pytest.raises(ResponseError, match=r"^FORBIDDEN "):
                client.execute_command(*words)
        pipeline = client.pipeline(transaction=False)
        for name in ("orders.a", "other", "orders.a"):
            pipeline.sadd(name, "y", 0)
        first, second, third = pipeline.execute(raise_on_error=False)
        assert (first, third) == (1, 1)
        assert str(second).startswith("FORBIDDEN")
        assert client.spop("orders.a", 10) == [b"x", b"y", b"y"]


def test_a_rate_limit_counts_commands(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    with of_key(service, keys, "slow") as client:
        pipeline = client.pipeline(transaction=False)
        for _ in range(10):
            pipeline.sadd(topic, "a", 0)
        replies = pipeline.execute(raise_on_error=False)
        assert 1 <= replies.count(1) <= 5
        assert all(reply == 1 or str(reply).startswith("RATE_LIMITED ") for reply in replies)


def test_a_rate_limit_counts_each_pop_of_a_pipeline(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    with of_key(service, keys, "all") as client:
        client.sadd(topic, *["a", 0] * 10)
    with of_key(service, keys, "slow-pops") as client:
        replies = _replies(client, *[["SPOP", topic]] * 10)
    assert 1 <= replies.count(b"a") <= 5
    assert all(reply == b"a" or str(reply).startswith("RATE_LIMITED ") for reply in replies)


def test_a_quota_and_bounds_hold(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    with of_key(service, keys, "small") as client:
        assert client.sadd("small.a", "a", 0, "b", 0) == 2
        with pytest.raises(ResponseError, match=r"^RATE_LIMITED the topics of key 'small' are full"):
            client.sadd("small.a", "c", 0, "d", 0)
        assert client.spop("small.a", 5) == [b"a", b"b"]
    with of_key(service, keys, "short") as client:
        with pytest.raises(ResponseError, match=r"^PAYLOAD_TOO_LARGE "):
            client.sadd(topic, "x" * 400, 0)
        with pytest.raises(ResponseError, match=r"^VALIDATION jobs: must have at most 2 items"):
            client.sadd(topic, "a", 0, "b", 0, "c", 0)
        assert client.sadd(topic, "a", 0) == 1


def test_a_revoked_key_can_do_nothing_more(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    keys.add("leaving", "put", "pop", "read")
    with redis_client(service, password=keys.tokens["leaving"]) as client:
        wait_until(lambda: _may_connect(client), 20, "the key is known")
        assert client.sadd(topic, "a", 0) == 1
        keys.remove("leaving")
        wait_until(lambda: not _may_put(client, topic), 20, "the key is revoked")
        for words in (("SADD", topic, "b", 0), ("SPOP", topic), ("DEFERD.GET", topic, "a")):
            with pytest.raises(ResponseError, match=r"^UNAUTHORIZED "):
                client.execute_command(*words)


def _may_connect(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except AuthenticationError:
        return False


def _may_put(client: redis.Redis, topic: str) -> bool:
    try:
        return client.sadd(topic, "a", 0) == 1
    except ResponseError:
        return False


def test_a_purge_is_in_the_audit_log(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    with of_key(service, keys, "all") as client:
        client.sadd(topic, "a", 0)
        assert client.delete(topic) == 1

    def logged() -> list[tuple[str, str, str]]:
        lines = (line for line in audit_lines(service) if line["topic"] == topic)
        return [(line["key"], line["call"], line["outcome"]) for line in lines]

    wait_until(lambda: bool(logged()), 10, "it is logged")
    assert logged() == [("all", "DELETE /topics/{topic}", "done")]


def test_tokens_are_never_logged(service: ServiceProcess, keys: KeysFile) -> None:
    with of_key(service, keys, "all") as client:
        client.ping()
    assert not [name for name, token in keys.tokens.items() if token in service.output()]
