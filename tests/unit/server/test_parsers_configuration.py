"""Settings, store URLs and keys are parsed, or refused with a sentence that shows no secret."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deferd.api.auth.api_keys import KEYS_MAX, Key, KeysRefused, Limit, hash_of, parse_keys
from deferd.api.auth.key_source import KeySource
from deferd.contract.scopes import Scope
from deferd.settings import _CLIENT_VARIABLES, Settings, SettingsError, load_settings, unknown_variables, variable
from deferd.store.url import StoreUrlError, parse_store_url
from tests.drawn_input import digits, drawn, outcome, texts

SECRET = "sesame-open"


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """The environment with no DEFERD_* variables but these."""
    before = dict(os.environ)
    for name in before:
        if name.upper().startswith("DEFERD_"):
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


setting_texts = st.one_of(
    texts,
    st.sampled_from(
        ["8000", "1", "0.5", "true", "off", "json", "INFO", "127.0.0.1", "~", "~nobody-here/x", "./a", "1e3"]
    ),
)
settings_as_texts = st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), setting_texts, max_size=4)


def loads(flags: dict[str, str], names: list[str]) -> None:
    try:
        load_settings(flags)
    except SettingsError as refused:
        for sentence in refused.problems:
            assert any(variable(name) in sentence for name in names)
            assert len(sentence) < 1000


@drawn(400)
@given(flags=settings_as_texts)
def test_flags_are_settings_or_refused_by_name(flags: dict[str, str]) -> None:
    with environment({}):
        loads(flags, [*flags])


@drawn(200)
@given(values=settings_as_texts)
def test_variables_are_settings_or_refused_by_name(values: dict[str, str]) -> None:
    possible = {name: text for name, text in values.items() if "\0" not in text and is_encodable(text)}
    with environment({variable(name): text for name, text in possible.items()}):
        loads({}, [*possible])


def is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@drawn(200)
@given(names=st.lists(texts | texts.map("DEFERD_{}".format) | st.just("deferd_prot"), max_size=4))
def test_variables_are_known_or_reported(names: list[str]) -> None:
    known = {variable(name) for name in Settings.model_fields} | _CLIENT_VARIABLES  # constants of modules are drawn too
    unknown = [name for name in names if name.upper().startswith("DEFERD_") and name.upper() not in known]
    assert len(unknown_variables(names)) == len(unknown)


# Store URLs

hosts = st.sampled_from(["db", "10.0.0.1", "[::1]", "a.b-c", "h:7000", "[::2]:7001"])
pieces = st.one_of(
    texts, hosts, st.sampled_from([f"me:{SECRET}@", f":{SECRET}@", "/3", "?db=2", "?", "#", "/main", ","])
)
near_urls = st.builds(
    lambda scheme, rest: f"{scheme}://{''.join(rest)}",
    st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "rediss+cluster", "redis+cluster", "http", "REDIS"]),
    st.lists(pieces, max_size=5),
)


@drawn(600)
@given(url=near_urls | texts)
@example(url="redis://db/" + "9" * 5000)
def test_a_text_is_a_store_url_or_refused_and_no_secret_is_shown(url: str) -> None:
    address, refused = outcome(lambda: parse_store_url(url), StoreUrlError)
    if address is None:
        assert SECRET not in str(refused)
        assert refused is not None
        assert refused.__cause__ is None
        return
    if address.password == SECRET:
        others = replace(address, username=None, path="", master_name="", hosts=())
        assert SECRET not in repr(others)
    assert all(0 <= port <= 65535 and host for host, port in address.hosts)
    assert address.db >= 0


logins = st.none() | st.tuples(st.text(max_size=8), st.none() | st.text(max_size=8))


@drawn(300)
@given(
    kind=st.sampled_from(["redis", "rediss", "redis+sentinel", "rediss+cluster"]),
    login=logins.filter(lambda login: login is None or is_encodable("".join(part or "" for part in login))),
    hosts=st.lists(
        st.tuples(st.sampled_from(["db", "10.0.0.1", "::1"]), st.integers(0, 65535)), min_size=1, max_size=3
    ),
    db=st.integers(0, 99),
)
def test_a_written_store_url_is_parsed_unchanged(
    kind: str, login: tuple[str, str | None] | None, hosts: list[tuple[str, int]], db: int
) -> None:
    if login is not None and any("\udc80" <= character <= "\udfff" for part in login for character in part or ""):
        return
    authority = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
    user, password = login or (None, None)
    if login is not None:
        authority = (
            f"{quote(user or '', safe='')}{'' if password is None else ':' + quote(password, safe='')}@{authority}"
        )
    path = {"redis+sentinel": f"/main?db={db}", "rediss+cluster": ""}.get(kind, f"/{db}")
    address = parse_store_url(f"{kind}://{authority}{path}")
    assert tuple(hosts) == address.hosts
    assert (user or None, password) == (address.username, address.password)
    assert address.db == (0 if kind == "rediss+cluster" else db)
    shown = parse_store_url(str(address))
    assert (address.hosts, address.db, address.master_name) == (shown.hosts, shown.db, shown.master_name)


# Keys

toml_strings = texts.filter(is_encodable).map(json.dumps)
toml_values = st.one_of(
    toml_strings,
    st.sampled_from(
        [
            "1",
            "0.5",
            "nan",
            "-inf",
            "true",
            "[]",
            "{}",
            '["put"]',
            '["put", 1]',
            '["admin"]',
            "1979-05-27",
            '["a.*"]',
            "0x1",
        ]
    ),
    digits,
)
toml_keys = st.sampled_from(["name", "hash", "scopes", "topics", "requests_per_second", "burst", "other", '"a.b"'])
toml_lines = st.one_of(
    st.sampled_from(["[[key]]", "[key]", "[[key.name]]", f'hash = "{hash_of(SECRET)}"', 'scopes = ["put"]', "#"]),
    st.tuples(toml_keys, toml_values).map(" = ".join),
    texts,
)


@drawn(600)
@given(text=st.lists(toml_lines, max_size=8).map("\n".join) | texts)
@example(text="burst = " + "9" * 5000)
@example(text="burst = " + "[" * 5000)
def test_a_text_is_keys_or_refused(text: str) -> None:
    keys, refused = outcome(lambda: parse_keys(text), KeysRefused)
    assert len(str(refused)) < 1000
    if keys is None:
        return
    assert 1 <= len(keys) <= KEYS_MAX
    assert len({key.name for key in keys}) == len(keys)


@drawn(200)
@given(
    content=st.binary(max_size=60)
    | st.lists(toml_lines, max_size=6).map(lambda lines: "\n".join(lines).encode(errors="surrogatepass"))
)
def test_the_bytes_of_a_file_are_keys_or_refused_by_the_name_of_the_setting(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys.toml"
    file.write_bytes(content)
    keys, refused = outcome(KeySource(file, None).read, KeysRefused)
    assert keys or "DEFERD_KEYS_FILE" in str(refused)


key_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}", fullmatch=True)
patterns = st.from_regex(r"[a-c.*]{1,8}", fullmatch=True)
entries = st.fixed_dictionaries(
    {"name": key_names, "scopes": st.lists(st.sampled_from(list(Scope)), min_size=1, max_size=3)},
    optional={
        "topics": st.lists(patterns, min_size=1, max_size=3),
        "limit": st.tuples(st.integers(1, 1000) | st.floats(0.001, 1e6), st.integers(1, 1_000_000)),
    },
)


def written(entry: dict[str, Any]) -> str:
    lines = ["[[key]]", f"name = {json.dumps(entry['name'])}", f'hash = "{hash_of(entry["name"])}"']
    lines.append(f"scopes = {json.dumps(entry['scopes'])}")
    if "topics" in entry:
        lines.append(f"topics = {json.dumps(entry['topics'])}")
    if "limit" in entry:
        lines.append(f"requests_per_second = {entry['limit'][0]!r}\nburst = {entry['limit'][1]}")
    return "\n".join(lines)


@drawn(200)
@given(some_entries=st.lists(entries, min_size=1, max_size=4, unique_by=lambda entry: entry["name"]))
def test_written_keys_are_parsed_unchanged(some_entries: list[dict[str, Any]]) -> None:
    keys = parse_keys("\n\n".join(map(written, some_entries)))
    for entry, key in zip(some_entries, keys, strict=True):
        assert isinstance(key, Key)
        assert entry["name"] == key.name
        assert key.scopes == frozenset(Scope if Scope.ADMIN in entry["scopes"] else entry["scopes"])
        assert key.limit == (Limit(float(entry["limit"][0]), entry["limit"][1]) if "limit" in entry else None)


@pytest.mark.parametrize("text", ["~nobody-here/data", "~nobody-here"])
def test_the_home_of_an_unknown_user_is_refused(text: str) -> None:
    with environment({}), pytest.raises(SettingsError, match="--data-dir"):
        load_settings({"data_dir": text})
