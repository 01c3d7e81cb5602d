"""Who made a request that came through proxies."""

from __future__ import annotations

import pytest

from deferd.server.http.trusted_proxies import TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7"])


@pytest.mark.parametrize(
    ("forwarded", "caller"),
    [
        (["198.51.100.1"], "198.51.100.1"),
        (["1.2.3.4, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),  # what precedes the caller, anybody has written
        (["1.2.3.4", "198.51.100.1,2001:db8:1::8", " 192.0.2.7 "], "198.51.100.1"),
        (["198.51.100.1:4711"], "198.51.100.1"),
        (["2001:db8:2::1"], "2001:db8:2::1"),
        (["[2001:DB8:2:0::1]:4711, [2001:db8:1::8]"], "2001:db8:2::1"),
        (["::ffff:198.51.100.1, ::ffff:10.0.0.2"], "198.51.100.1"),
        (["fe80::1%eth0 by key root from 9.9.9.9"], "fe80::1"),  # a scope may be any text
        (["10.0.0.5, 10.0.0.4"], "10.0.0.5"),  # all are proxies
        (["198.51.100.1, unknown, 10.0.0.4"], "10.0.0.4"),
        (["198.51.100.1,"], "10.0.0.1"),
        (["\xff"], "10.0.0.1"),
        ([], "10.0.0.1"),
        ([",".join(["198.51.100.1", *["10.0.0.2"] * 50])], "10.0.0.2"),
    ],
)
def test_the_caller_is_the_last_address_that_is_of_no_trusted_proxy(forwarded: list[str], caller: str) -> None:
    others = [(b"host", b"9.9.9.9"), (b"forwarded", b"for=9.9.9.9")]  # the second one is the client's
    headers = [*others, *((b"x-forwarded-for", value.encode("latin-1")) for value in forwarded)]
    assert PROXIES.caller("10.0.0.1", headers) == caller


def test_only_connections_from_the_networks_are_those_of_proxies() -> None:
    trusted = ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8:1::1"]
    assert [PROXIES.is_trusted(host) for host in trusted] == [True] * 4
    assert [PROXIES.is_trusted(host) for host in ("11.0.0.1", "192.0.2.8", "2001:db8:2::1", "a", "")] == [False] * 5
    assert not TrustedProxies([]).is_trusted("127.0.0.1")
