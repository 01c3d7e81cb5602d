"""Settings come from flags, then the environment, then defaults; a wrong one is refused with its range."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from deferd.settings import (
    Settings,
    SettingsError,
    accepted,
    flag,
    load_settings,
    shown_settings,
    unknown_variables,
    variable,
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("DEFERD_")]:
        monkeypatch.delenv(name)


def refusal(**flags: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags)
    [sentence] = caught.value.problems
    return sentence


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_PORT", "9001")
    monkeypatch.setenv("DEFERD_WORKERS", "3")

    settings = load_settings({"port": "9002"})

    assert settings.port == 9002
    assert settings.workers == 3


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_REDIS_URL", "")

    assert load_settings({}).redis_url is None


def test_settings_cannot_be_changed() -> None:
    settings = load_settings({})

    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("port", "65536", "a whole number from 0 to 65535"),
        ("port", "http", "a whole number from 0 to 65535"),
        ("port", "", "a whole number from 0 to 65535"),
        ("workers", "0", "a whole number from 1 to 256"),
        ("shards", "1025", "a whole number from 1 to 1024"),
        ("shards", "1.5", "a whole number from 1 to 1024"),
        ("shelf_after", "2x", "a number from 0 to 315576000, in seconds, or a duration such as 2h, 30m or 0s"),
        ("shelf_after", "-1.5", "a number from 0 to 315576000, in seconds, or a duration such as 2h, 30m or 0s"),
        ("tick", "0", "a number from 0.01 to 60"),
        ("tick", "nan", "a number from 0.01 to 60"),
        ("store_timeout", "inf", "a number from 0.1 to 60"),
        ("dead_retention", "-1", "a number from 1 to 315576000"),
        ("max_body_bytes", "1e3", "a whole number from 1024 to 67108864"),
        ("test_clock", "perhaps", "true or false"),
        ("log_format", "xml", "one of console, json"),
        (
            "environment",
            "eu/production",
            "1 to 32 letters, digits, dots, hyphens and underscores, such as production",
        ),
        ("environment_color", "pink", "one of red, orange, green, blue, gray"),
        ("log_level", "loud", "one of debug, info, warning, error, critical"),
        ("host", "", "a non-empty text"),
        (
            "allowed_host",
            "jobs.example.com:443",
            "host names without a port, such as jobs.example.com, *.example.com, or * for any",
        ),
        ("allowed_host", "a,b*", "host names without a port, such as jobs.example.com, *.example.com, or * for any"),
    ],
)
def test_a_wrong_value_is_refused_with_setting_value_and_range(name: str, value: str, wanted: str) -> None:
    sentence = refusal(**{name: value})

    assert sentence == f"{flag(name)} ({variable(name)}) is {value!r}, but must be {wanted}"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_a_boolean_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("DEFERD_TEST_CLOCK", text)

    assert load_settings({}).test_clock is value


def test_a_movable_clock_is_refused_on_an_external_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_REDIS_URL", "redis://:sesame@db")

    assert refusal(test_clock="true") == (
        "--test-clock (DEFERD_TEST_CLOCK) moves the clock of the service's own embedded store, and cannot be "
        "combined with --redis-url (DEFERD_REDIS_URL)"
    )
    assert load_settings({"test_clock": "false"}).redis_url is not None


def test_the_variables_that_kubernetes_sets_for_a_service_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_PORT", "tcp://10.0.0.1:8000")

    assert "enableServiceLinks" in refusal()


def test_a_store_url_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_REDIS_URL", "redis://:sesame@db")

    settings = load_settings({})

    assert "sesame" not in repr(settings)
    assert "sesame" not in settings.model_dump_json()


def test_an_unknown_variable_is_reported() -> None:
    [sentence] = unknown_variables(["DEFERD_PROT", "DEFERD_PORT", "deferd_tick", "PATH"])

    assert sentence == "the environment variable DEFERD_PROT is not a setting of deferd; did you mean DEFERD_PORT?"


def test_the_variables_of_the_client_are_not_reported() -> None:
    assert [] == unknown_variables(["DEFERD_URL", "DEFERD_KEY", "DEFERD_CA_FILE", "DEFERD_TIMEOUT", "DEFERD_RETRY_FOR"])


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_description_says_the_range_that_is_enforced(name: str) -> None:
    description = Settings.model_fields[name].description
    assert description is not None
    range_text = re.search(r"from (\S+) to (\S+)$", accepted(name))
    if range_text is not None:
        assert f"{range_text[1]} to {range_text[2]}" in description


def test_a_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    assert load_settings({"data_dir": "~/jobs"}).data_dir == Path("/home/me/jobs")


def test_keys_are_a_secret_and_exclude_a_keys_file() -> None:
    assert "sesame" not in repr(load_settings({"keys": "sesame"}))
    assert "--keys (DEFERD_KEYS) cannot be combined with --keys-file" in refusal(keys="sesame", keys_file="k.toml")
    assert "sesame" not in refusal(keys="sesame", keys_file="k.toml")


def test_by_default_there_are_no_keys_and_nothing_is_insecure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_KEYS", "")  # as a compose file passes it on when it is not set
    settings = load_settings({})

    assert (settings.keys, settings.keys_file, settings.insecure) == (None, None, False)


def test_a_keys_file_may_be_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    assert load_settings({"keys_file": "~/keys.toml"}).keys_file == Path("/home/me/keys.toml")
    assert accepted("keys_file") == "a path"


def test_allowed_hosts_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).allowed_host == ()
    monkeypatch.setenv("DEFERD_ALLOWED_HOST", "jobs.example.com, *.Example.org *")
    assert load_settings({}).allowed_host == ("jobs.example.com", "*.Example.org", "*")
    assert load_settings({"allowed_host": "other"}).allowed_host == ("other",)


def test_masks_of_the_console_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).console_mask == ()
    monkeypatch.setenv("DEFERD_CONSOLE_MASK", "password, *.token")
    assert load_settings({}).console_mask == ("password", "*.token")
    with pytest.raises(SettingsError, match="must be names of fields with dots between them"):
        load_settings({"console_mask": "a..b"})


def test_urls_of_relays_are_secrets_and_keep_the_commas_between_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).relay == ()
    monkeypatch.setenv("DEFERD_RELAY", "postgresql://u:sesame@h1:1,h2/a postgres://h/b, postgresql://h/c,x")
    settings = load_settings({})
    urls = [url.get_secret_value() for url in settings.relay]
    assert urls == ["postgresql://u:sesame@h1:1,h2/a", "postgres://h/b", "postgresql://h/c,x"]
    assert "sesame" not in f"{settings} {settings.model_dump_json()} {shown_settings(settings)}"
    both = load_settings({"relay": "postgresql://h/a,postgresql://h/b"}).relay  # as the flag gives them
    assert [url.get_secret_value() for url in both] == ["postgresql://h/a", "postgresql://h/b"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200.0), ("30m", 1800.0), ("0s", 0.0), ("90", 90.0), ("0.5", 0.5)]
)
def test_the_time_after_which_jobs_are_shelved_may_have_a_unit(text: str, seconds: float) -> None:
    assert load_settings({"shelf_after": text}).shelf_after == seconds


def test_the_shelf_needs_the_embedded_store() -> None:
    assert refusal(shelf_after="2h", redis_url="redis://localhost") == (
        "--shelf-after (DEFERD_SHELF_AFTER): the shelf needs the embedded store, and cannot be combined with "
        "--redis-url (DEFERD_REDIS_URL)"
    )
