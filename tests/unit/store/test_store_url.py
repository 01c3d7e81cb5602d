"""Store URLs: what each form means, and that none is shown with its secrets."""

from __future__ import annotations

import pytest

from deferd.store.url import StoreUrl, StoreUrlError, parse_store_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://db", StoreUrl("redis", "server", hosts=(("db", 6379),))),
        ("redis://db:7000/3", StoreUrl("redis", "server", hosts=(("db", 7000),), db=3)),
        ("redis://[::1]:7000?db=3", StoreUrl("redis", "server", hosts=(("::1", 7000),), db=3)),
        (
            "redis://me:p%40ss%2Fw@db",
            StoreUrl("redis", "server", hosts=(("db", 6379),), username="me", password="p@ss/w"),
        ),
        ("redis://:p\nw\n@db\r\n", StoreUrl("redis", "server", hosts=(("db", 6379),), password="pw")),
        ("redis://:pw@db", StoreUrl("redis", "server", hosts=(("db", 6379),), password="pw")),
        (
            "rediss://db?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false",
            StoreUrl(
                "rediss",
                "server",
                hosts=(("db", 6379),),
                tls=True,
                tls_options=(("ssl_ca_certs", "/etc/ca.pem"), ("ssl_check_hostname", False)),
            ),
        ),
        ("unix:///run/a%20b.sock?db=2", StoreUrl("unix", "unix", path="/run/a b.sock", db=2)),
        ("unix://me:pw@/run/v.sock", StoreUrl("unix", "unix", path="/run/v.sock", username="me", password="pw")),
        (
            "redis+sentinel://me:pw@h1:1,h2/main?db=1&sentinel_password=sp",
            StoreUrl(
                "redis+sentinel",
                "sentinel",
                hosts=(("h1", 1), ("h2", 26379)),
                db=1,
                username="me",
                password="pw",
                master_name="main",
                sentinel_password="sp",
            ),
        ),
        (
            "redis+cluster://me:a[b@h1,[::2]:1,[::3]?",
            StoreUrl(
                "redis+cluster",
                "cluster",
                hosts=(("h1", 6379), ("::2", 1), ("::3", 6379)),
                username="me",
                password="a[b",
            ),
        ),
        (
            "rediss+cluster://h1:1,h2",
            StoreUrl("rediss+cluster", "cluster", hosts=(("h1", 1), ("h2", 6379)), tls=True),
        ),
    ],
)
def test_each_form_is_understood(url: str, expected: StoreUrl) -> None:
    assert parse_store_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "db:6379",
        "http://sesame@db",
        "redis://",
        "redis://:sesame@",
        "redis://:sesame@db:port",
        "redis://:sesame@db:70000",
        "redis://:ses#ame@db",
        "redis://:sesame@db/jobs",
        "redis://:sesame@db?retry_on_timeout=1",
        "redis://:sesame@db?ssl_ca_certs=x",
        "redis://:sesame@[::1",
        "rediss://db?ssl_cert_reqs=maybe",
        "rediss://db?ssl_check_hostname=2",
        "unix://sesame/run/v.sock",
        "unix:v.sock",
        "redis+sentinel:sesame://h1/main",
        "redis+sentinel://:sesame@h1:1,h2:2",
        "redis+sentinel://:sesame@h1:1,,h2:2/main",
        "redis+sentinel://:sesame@h1/main/1",
        "redis+cluster://:sesame@h1/1",
        "redis+cluster://:sesame@h1?db=1",
    ],
)
def test_an_invalid_store_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_store_url(url)

    assert "ame" not in str(caught.value).replace("name", "")
    assert caught.value.__cause__ is None


def test_a_store_url_is_shown_without_its_secrets() -> None:
    parsed = parse_store_url("redis+sentinel://me:sesame@h1:1,[::2]:2/main?db=1&sentinel_password=sesame")

    assert str(parsed) == "redis+sentinel://h1:1,[::2]:2/main?db=1"
    assert "sesame" not in repr(parsed)
