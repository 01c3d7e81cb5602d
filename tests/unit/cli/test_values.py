"""Values on the command line: durations, instants, backoffs, JSON, URLs of the service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from deferd import AsyncClient, Client
from deferd.bench.options import OptionsError, read_options
from deferd.cli import main as cli
from deferd.cli.framework import output, values
from deferd.cli.framework.options import Connection, connection_options
from deferd.contract.backoff import Backoff


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("-5", -5),  # refused by the service, which names the limit
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("90s", 90),
        ("30m", 1800),
        ("1.5h", 5400),
        ("24h", 86400),
        ("7d", 604800),
        ("2w", 1209600),
        ("1h30m", 5400),
        ("1d12h30m15s", 131415),
    ],
)
def test_a_duration_is_seconds_or_parts_with_units(text: str, seconds: float) -> None:
    assert seconds == values.duration(text)


@pytest.mark.parametrize(
    "text", ["", "m", "30 m", "30M", "5x", "1h1h", "30m5", "-30m", "1e3", "inf", "nan", "٣m", "1_0"]
)
def test_an_invalid_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration: write seconds, such as 90, or 90s, 30m, 24h"):
        values.duration(text)


def test_none_lifts_a_limit() -> None:
    assert (values.duration_or_none("none"), values.duration_or_none("1m")) == (None, 60)
    assert (values.whole_or_none("none"), values.whole_or_none("3")) == (None, 3)
    with pytest.raises(click.BadParameter, match="'no' is neither a whole number nor none"):
        values.whole_or_none("no")


@pytest.mark.parametrize("text", ["nan", "inf", "1e-300", "0", "-5", "1000.1", "fast"])
def test_a_rate_is_one_that_a_redrive_may_have(text: str) -> None:
    assert (values.redrive_rate("0.01"), values.redrive_rate("1e3")) == (0.01, 1000)
    with pytest.raises(click.BadParameter, match=r"is not a number from 0\.01 to 1000$"):
        values.redrive_rate(text)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("100/s", {"count": 100, "per": 1}),
        ("5/10s", {"count": 5, "per": 10}),
        ("1000/m", {"count": 1000, "per": 60}),
        ("7/0.5s", {"count": 7, "per": 0.5}),
        ("none", None),
    ],
)
def test_a_rate_of_deliveries_is_a_count_in_a_time(text: str, made: dict[str, Any] | None) -> None:
    assert values.rate_or_none(text) == made


@pytest.mark.parametrize("text", ["", "5", "5/", "/s", "5/fortnight", "x/s", "5/s/s", "1.5/s"])
def test_an_invalid_rate_of_deliveries_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a rate: write 100/s"):
        values.rate_or_none(text)


def test_an_instant_has_a_zone() -> None:
    assert datetime(2030, 1, 31, 9, 30, tzinfo=UTC) == values.instant("2030-01-31T09:30:00Z")
    assert datetime(2030, 1, 31, 8, 30, tzinfo=UTC) == values.instant("2030-01-31T09:30+01:00")
    for text in ("2030-01-31T09:30:00", "2030-01-31", "tomorrow", ""):
        with pytest.raises(click.BadParameter, match="is not an instant with a zone: it must look like"):
            values.instant(text)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("exponential", {"kind": "exponential"}),
        ("exponential:2:212", {"kind": "exponential", "base": 2, "cap": 212}),
        ("exponential:3:1h:0.1", {"kind": "exponential", "base": 3, "cap": 3600, "jitter": 0.1}),
        ("exponential::5m", {"kind": "exponential", "cap": 300}),
        ("fixed:10", {"kind": "fixed", "seconds": 10}),
        ("fixed:2m:0.5", {"kind": "fixed", "seconds": 120, "jitter": 0.5}),
        ("schedule:120,600,3600", {"kind": "schedule", "seconds": [120, 600, 3600]}),
        ("schedule:2m,10m,1h", {"kind": "schedule", "seconds": [120, 600, 3600]}),
        ("schedule:2m:repeat_last", {"kind": "schedule", "seconds": [120], "then": "repeat_last"}),
        ("schedule:1,2:dead:0.2", {"kind": "schedule", "seconds": [1, 2], "then": "dead", "jitter": 0.2}),
        ("schedule:1,2:0.2", {"kind": "schedule", "seconds": [1, 2], "jitter": 0.2}),
        ('{"kind": "fixed", "seconds": 3}', {"kind": "fixed", "seconds": 3}),
    ],
)
def test_a_backoff_has_short_forms_that_the_contract_takes(text: str, made: dict[str, Any]) -> None:
    assert made == values.backoff(text)
    whole = TypeAdapter[Any](Backoff).validate_python(made).model_dump()
    assert whole == TypeAdapter[Any](Backoff).validate_python(values.backoff(output.backoff(whole))).model_dump()


@pytest.mark.parametrize("text", ["", "linear:2", "fixed", "fixed:", "fixed:1:2:3", "exponential:a", "schedule:1,,2"])
def test_an_invalid_backoff_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a backoff: write exponential:2:212"):
        values.backoff(text)


def test_json_is_parsed_and_an_unquoted_text_gets_a_hint() -> None:
    assert {"order": 1042} == values.json_value('{"order": 1042}')
    with pytest.raises(click.BadParameter) as refused:
        values.json_value("hello")
    assert "'hello' is not JSON" in str(refused.value)
    assert str(refused.value).endswith("""a JSON string needs quotes of its own: '"hello"'""")
    for text in ("{order: 1}", "NaN", "", '{"a": 1', "[" * 100_000):
        with pytest.raises(click.BadParameter, match="is not JSON"):
            values.json_value(text)
    with pytest.raises(click.BadParameter, match="is not a JSON object"):
        values.json_object("[1]")


def test_urls_are_one_or_several() -> None:
    assert ["http://a:1"] == values.service_urls("http://a:1/")
    assert ["http://a:1", "https://b/jobs"] == values.service_urls("http://a:1, https://b/jobs/,")
    assert ["unix:///run/d.sock"] == values.service_urls("unix:///run/d.sock")  # a client parses it once more


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost", "http://localhost"),
        ("localhost:8000", "http://localhost:8000"),
        ("127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("deferd.example/jobs", "http://deferd.example/jobs"),
        ("HTTPS://a", "https://a"),
    ],
)
def test_a_url_without_a_scheme_is_http(text: str, url: str) -> None:
    assert [url] == values.service_urls(text)
    assert (url,) == Client(text).urls == AsyncClient(text).urls


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_URL", "")
    assert ("http://127.0.0.1:8000",) == Client().urls
    monkeypatch.setenv("DEFERD_URL", "a:1, https://b,")
    assert ("http://a:1", "https://b") == Client().urls


WRONG_URLS = [
    *("", ",", "a:", "a:x", "::1", "//a", "ftp://a", "http:/a", "http://", "http://a?b=1", "http://a#b", "http://a#"),
    *("http://a:x", "http://a b", "http://a\nb", "http://[a"),
]


@pytest.mark.parametrize("text", WRONG_URLS)
def test_an_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="URL"):
        values.service_urls(text)


@pytest.mark.parametrize(
    "text",
    [
        *("http://me:sesame@a:1", "http://me:sesame@a:x", "me:sesame@a", "http:/me:sesame@a", "ftp://me:sesame@a"),
        *("http://me:sesame,x@a", "http://b,http://me:sesame,@a", "http://me:80/sesame@a", "http://a:8000@sesame"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(click.BadParameter, match="user or password") as refused:
        values.service_urls(text)
    with pytest.raises(ValueError, match="user or password") as refused_by_client:
        Client(text)
    with pytest.raises(OptionsError, match="user or password") as refused_by_bench:
        read_options({"url": text})
    assert "sesame" not in f"{refused.value} {refused_by_client.value} {refused_by_bench.value}"


def test_a_password_with_a_comma_in_the_variable_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEFERD_URL", "http://me:sesame,x@a")
    with pytest.raises(ValueError, match="user or password") as refused:
        Client()
    cli.main(["config"])
    shown = capsys.readouterr()
    assert "sesame" not in f"{refused.value} {shown.out} {shown.err}"


def connection_of(*words: str, **variables: str) -> Connection:
    """What a command gets of these options and variables."""
    found: list[Connection] = []

    @click.command()
    @connection_options
    def command(connection: Connection) -> None:
        found.append(connection)

    names = ("DEFERD_URL", "DEFERD_KEY", "DEFERD_CA_FILE", "DEFERD_TIMEOUT", "DEFERD_RETRY_FOR")
    ran = CliRunner().invoke(command, words, env={**dict.fromkeys(names), **variables}, standalone_mode=False)
    if ran.exception is not None:
        raise ran.exception
    return found[0]


def test_flags_win_over_variables_and_those_over_defaults() -> None:
    variables = {"DEFERD_URL": "http://env", "DEFERD_TIMEOUT": "3s", "DEFERD_KEY": ""}

    connection = connection_of("--url", "http://flag", **variables)

    assert (["http://flag"], 3, None, 5) == (
        connection.url,
        connection.timeout,
        connection.key,
        connection.retry_for,
    )
    assert {"url", "timeout"} == connection.explicit
    assert 60 == connection.with_defaults(retry_for=60.0).retry_for
    assert 1 == connection_of(DEFERD_RETRY_FOR="1").with_defaults(retry_for=60.0).retry_for


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (["--timeout", "2h"], {}, "--timeout: '2h' is not from 0.1 s to 1 h"),
        ([], {"DEFERD_TIMEOUT": "soon"}, "DEFERD_TIMEOUT (--timeout): 'soon' is not a duration"),
        (["--retry-for", "2d"], {}, "--retry-for: '2d' is not from 0 to 24 h"),
        ([], {"DEFERD_URL": "ftp://a"}, "DEFERD_URL (--url): is 'ftp://a', but must be an http:// or https:// URL"),
        (["--ca-file", __file__], {}, f"--ca-file: '{__file__}' cannot be used: [X509"),
        (
            [],
            {"DEFERD_CA_FILE": "/no.pem"},
            "DEFERD_CA_FILE (--ca-file): '/no.pem' cannot be used: [Errno 2] No such",
        ),
        ([], {"DEFERD_KEY": "ses ame"}, "DEFERD_KEY (--key): has a value that is not shown"),
    ],
)
def test_a_wrong_value_is_named_with_its_source_and_a_key_is_not_shown(
    words: list[str],
    variables: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert 2 == cli.main(["topics", *words])

    shown = capsys.readouterr().err
    assert shown.startswith(f"deferd: {sentence}")
    assert "ses ame" not in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.25, "0.25s"), (9.5, "9.5s"), (59.9, "59s"), (60, "1m"), (5400, "1h 30m"), (90061, "1d 1h")],
)
def test_a_span_is_shown_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert shown == output.span(seconds)


def test_text_of_jobs_cannot_control_the_terminal() -> None:
    assert r"a\x1b[2Jb\n\x9bc\u202e" == output.printable("a\x1b[2Jb\n\x9bc\u202e")
    assert "Zoë 日本" == output.printable("Zoë 日本")
