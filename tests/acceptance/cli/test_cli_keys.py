"""Commands against a service that requires keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.cli.command_line import Shell
from tests.acceptance.service_process import running_service


@pytest.fixture(scope="module")
def shell_and_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, str]]:
    """A service with one key, which may put, and the key."""
    folder = tmp_path_factory.mktemp("keys")
    made = Shell("").run("key", "new", "--name", "shop", "--scope", "put", "--topic", "orders.*")
    assert made.returncode == 0
    keys = folder / "keys.toml"
    keys.write_text(made.stdout)
    [token] = [word for word in made.stderr.split() if word.startswith("deferd_")]
    with running_service("--keys-file", str(keys), data_dir=folder / "data") as service:
        yield Shell(service.url), token


def test_without_a_key_or_with_an_unknown_one_it_ends_with_5(shell_and_key: tuple[Shell, str]) -> None:
    shell, _ = shell_and_key

    assert "set it by --key or DEFERD_KEY" in shell.refused(5, "put", "orders.close", "1")
    assert "sesame" not in shell.refused(5, "put", "orders.close", "1", "--key", "sesame")


def test_a_key_is_limited_to_its_scope_and_topics(shell_and_key: tuple[Shell, str]) -> None:
    shell, token = shell_and_key

    done = shell.run("put", "orders.close", "1", "--id", "a", DEFERD_KEY=token)
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("orders.close/a ready")
    many = shell.run("put", "orders.close", "-", stdin="1\n2\n", DEFERD_KEY=token)
    assert (0, "2 put") == (many.returncode, many.stdout.partition(" in ")[0])
    assert token not in shell.refused(5, "put", "mails", "1", "--key", token)
    assert token not in shell.refused(5, "purge", "orders.close", "--yes", "--key", token)
