"""`deferd serve --relay`: the service sends outboxes by itself, with keys and TLS, and whatever a database does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deferd import Client
from deferd.outbox.schema import schema_sql
from tests.acceptance.api.keyed_service import keys_of_every_kind
from tests.acceptance.cli.command_line import run_in_process
from tests.acceptance.outbox.relay_runs import refused, waiting
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import running_service
from tests.postgresql import PostgresServer
from tests.waiting import wait_until

PASSWORD = "sesame"
PUT = "SELECT deferd.put('shop.close', to_jsonb(repeat('x', %s)), id => %s, delay => interval '1 hour')"
WITHIN_S = 20.0


def with_password(url: str) -> str:
    return url.replace("@", f":{PASSWORD}@")


@pytest.mark.slow
def test_the_first_process_sends_the_outbox_without_a_key(
    outbox_url: str, database: psycopg.Connection[Any], tmp_path: Path
) -> None:
    keys, files = keys_of_every_kind(tmp_path / "keys.toml"), TlsFiles(tmp_path)
    flags = ("--keys-file", str(keys.path), *files.flags(), "--workers", "2", "--max-body-bytes", "4096")
    with running_service(*flags, data_dir=tmp_path / "service", DEFERD_RELAY=with_password(outbox_url)) as service:
        with Client(service.url, key=keys.tokens["admin"], ca_file=files.authority_file) as client:
            for size, job_id in ((1, "kept"), (5000, "large"), (1, "cancelled"), (1, "moved")):
                database.execute(PUT, (size, job_id))
            wait_until(lambda: not waiting(database), WITHIN_S, "the rows are sent")
            database.execute("SELECT deferd.cancel('shop.close', 'cancelled')")
            database.execute("SELECT deferd.reschedule('shop.close', 'moved', delay => interval '2 hours')")
            database.execute("SELECT deferd.cancel_tag('nothing')")
            wait_until(lambda: not waiting(database), WITHIN_S, "the rows are sent")
            kept, moved = client.jobs("shop.close")
            assert (kept.id, moved.id) == ("kept", "moved")
            assert refused(database) == {"large": "payload_too_large"}
            [relay] = client.relays()
            assert relay.state == "works"
            shown = f"{relay} {client.system()}"
        service.stop()
        assert service.serving.lines[-1].rstrip().endswith("stopped")
    assert PASSWORD not in service.output() + shown
    assert database.execute("SELECT clean_stop FROM deferd.relay").fetchone() == (True,)


def test_databases_that_cannot_be_used_are_tried_again_and_stop_nothing(
    postgres: PostgresServer, outbox_url: str, database: psycopg.Connection[Any], tmp_path: Path
) -> None:
    later_url = postgres.database()
    urls = f"postgresql://u:{PASSWORD}@127.0.0.1:1/none {with_password(later_url)} {with_password(outbox_url)}"
    variables = {"DEFERD_RELAY": urls, "DEFERD_LOG_LEVEL": "debug"}
    with running_service(data_dir=tmp_path, **variables) as service, Client(service.url, key="") as client:
        database.execute(PUT, (1, "a"))
        wait_until(lambda: not waiting(database), WITHIN_S, "the outbox that is there is sent")
        with psycopg.connect(later_url, autocommit=True) as later:
            wait_until(lambda: "the database has no outbox" in service.output(), WITHIN_S, "it is logged")
            later.execute(schema_sql())
            later.execute(PUT, (1, "b"))
            wait_until(lambda: not waiting(later), WITHIN_S, "the other one is sent once it is there")
        assert [job.id for job in client.jobs("shop.close")] == ["a", "b"]
        assert sorted(one.state for one in client.relays()) == ["waits", "works", "works"]
        assert client.is_ready()
        service.stop()
    postgres.drop(later_url)
    assert "Connection refused" in service.output()
    assert PASSWORD not in service.output()


@pytest.mark.parametrize(
    ("urls", "reason"),
    [
        (f"postgresql://a@b/c, mysql://a:{PASSWORD}@b/c", "number 2 must begin with postgresql://"),
        (f"postgresql://a:{PASSWORD}@b/c?no=1", "number 1 is not a URL that PostgreSQL accepts"),
        (f"postgresql://a:@{PASSWORD}@b/c", "number 1 has characters in its user or password that must be written"),
        (f"postgresql://a:{PASSWORD}/@b/c", "number 1 has characters in its user or password that must be written"),
    ],
)
def test_a_wrong_url_refuses_the_start(urls: str, reason: str, tmp_path: Path) -> None:
    ran = run_in_process("serve", "--relay", urls, "--data-dir", str(tmp_path))
    assert ran.returncode == 2
    assert reason in ran.stderr
    assert "--relay (DEFERD_RELAY)" in ran.stderr
    assert PASSWORD not in ran.stderr + run_in_process("config", "--relay", urls).stdout


def test_without_psycopg_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("deferd.outbox.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    ran = run_in_process("serve", "--relay", "postgresql://a@b/c", "--data-dir", str(tmp_path))
    assert ran.returncode == 1
    assert "psycopg is missing" in ran.stderr
    assert "[outbox]" in ran.stderr
