"""Which URLs and addresses jobs may be pushed to."""

from __future__ import annotations

import ipaddress

import pytest

from deferd.contract.push_targets import AllowedTargets, TargetPattern, TargetRefused, is_public, target_of

NOT_PUBLIC = [
    *("0.0.0.1", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.255", "192.168.1.1", "192.0.0.8", "198.18.0.1", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.7"),
    *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::7f00:1"),
    *("64:ff9b:1::1", "fe80::1", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1", "2001::1"),
    *("2002:7f00:1::", "2002:a00:1::1", "100::1", "3fff::1", "5f00::1"),
]
PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "223.255.255.255"),
    *("2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    one = ipaddress.ip_address(address)
    assert not is_public(one)
    with pytest.raises(TargetRefused, match="not a public address"):
        AllowedTargets(["*:*"]).check_address(one, 443)
    with pytest.raises(TargetRefused, match="not a public address"):
        AllowedTargets(["*:*"]).check_resolved("hooks.example.com", one, 443)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    AllowedTargets(["*:*"]).check_address(ipaddress.ip_address(address), 443)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("hooks.example.com", "https://hooks.example.com/a?b=c"),
        ("hooks.example.com", "https://HOOKS.example.com:443/"),
        ("hooks.example.com", "https://hooks.example.com./"),
        ("*.example.com:8443", "https://a.b.example.com:8443/"),
        ("http://hooks.example.com", "http://hooks.example.com/"),
        ("http://hooks.example.com:*", "http://hooks.example.com:8080/"),
        ("*", "https://anything.example/"),
        ("localhost:9000", "http://localhost:9000/"),
        ("localhost:9000", "https://localhost:9000/"),
        ("127.0.0.1:*", "http://127.0.0.1:81/"),
        ("http://10.0.0.7:80", "http://10.0.0.7/"),
        ("[::1]:9000", "http://[::1]:9000/"),
        ("[::1]:9000", "http://[0:0::1]:9000/"),
    ],
)
def test_a_pattern_allows_its_urls(pattern: str, url: str) -> None:
    AllowedTargets([pattern]).check_url(url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("hooks.example.com", "http://hooks.example.com/"),
        ("hooks.example.com", "https://hooks.example.com:8443/"),
        ("hooks.example.com", "https://a.hooks.example.com/"),
        ("hooks.example.com", "https://hooks.example.com.evil.net/"),
        ("*.example.com", "https://example.com/"),
        ("*.example.com", "https://evilexample.com/"),
        ("http://hooks.example.com", "https://hooks.example.com/"),
        ("*", "http://anything.example/"),
        ("*", "https://10.0.0.1/"),
        ("*", "https://[::ffff:10.0.0.1]/"),
        ("localhost:9000", "http://localhost:9001/"),
        ("localhost:9000", "http://127.0.0.1:9000/"),
        ("10.0.0.7", "https://10.0.0.8/"),
    ],
)
def test_a_pattern_allows_nothing_else(pattern: str, url: str) -> None:
    with pytest.raises(TargetRefused):
        AllowedTargets([pattern]).check_url(url)


def test_without_patterns_nothing_is_allowed_and_the_error_says_how_to_change_that() -> None:
    with pytest.raises(TargetRefused, match="start the service with --push-allow"):
        AllowedTargets().check_url("https://example.com/")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("hooks.example.com/a", "must begin with https:// or http://"),
        ("ftp://example.com/", "must begin with https:// or http://"),
        ("//example.com/", "must begin with https:// or http://"),
        ("https:///path", "must have a host"),
        ("https://user:word@example.com/", "must have no user name or password"),
        ("https://example.com/#part", "must have no fragment"),
        ("https://example.com:99999/", "is not a URL"),
        ("https://example.com:0/", "must have a port"),
        ("https://exa mple.com/", "visible ASCII"),
        ("https://example.com/\r\nx: y", "visible ASCII"),
        ("https://bücher.example/", "visible ASCII"),
        ("https://example.com\\@evil.net/", "visible ASCII"),
        ("https://[::1", "is not a URL"),
        ("https://exa%6dple.com/", "in place of a host name"),
        ("https://2130706433/", "in place of a host name"),
        ("https://127.1/", "in place of a host name"),
        ("https://127.0.0.1./", "in place of a host name"),
        ("https://example.0x7f/", "in place of a host name"),
        ("https://[fe80::1%25lo]/", "must have no zone"),
    ],
)
def test_what_is_no_url_of_a_target_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(TargetRefused, match=reason):
        target_of(url)


@pytest.mark.parametrize(
    "text", ["", "a b", "https://", "example.com:0", "example.com:99999", "a/b", "a@b", "*x", "[g]"]
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has a port"):
        TargetPattern.parse(text)


def test_a_name_is_not_allowed_the_address_that_a_pattern_names() -> None:
    allowed = AllowedTargets(["*:8080", "http://10.0.0.7:8080"])
    with pytest.raises(TargetRefused):
        allowed.check_resolved("evil.example", ipaddress.ip_address("10.0.0.7"), 8080)


def test_a_network_allows_names_that_resolve_into_it() -> None:
    allowed = AllowedTargets(["http://orders.internal:8080"], ["10.0.0.0/8"])
    allowed.check_url("http://orders.internal:8080/")
    allowed.check_resolved("orders.internal", ipaddress.ip_address("10.1.2.3"), 8080)
    with pytest.raises(TargetRefused):
        allowed.check_resolved("orders.internal", ipaddress.ip_address("192.168.1.1"), 8080)


def test_only_localhost_itself_resolves_to_loopback() -> None:
    allowed = AllowedTargets(["localhost:9000", "*:9000"])
    allowed.check_resolved("localhost", ipaddress.ip_address("127.0.0.1"), 9000)
    with pytest.raises(TargetRefused):
        allowed.check_resolved("evil.example", ipaddress.ip_address("127.0.0.1"), 9000)
    with pytest.raises(TargetRefused):
        allowed.check_address(ipaddress.ip_address("127.0.0.1"), 9001)
