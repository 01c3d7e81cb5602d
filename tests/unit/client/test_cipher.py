"""Values that only an application can read: what encrypts and decrypts them, and what refuses to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd import AsyncClient, Cipher, Client, InvalidInput, Undecryptable, Worker
from deferd.cli.framework import values
from deferd.contract.encrypted_values import EncryptedValue, key_of
from tests.drawn_input import drawn, json_values

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "encryption"
VECTORS: dict[str, Any] = json.loads((EXAMPLES / "vectors.json").read_text())
CIPHER = Cipher(*VECTORS["keys"])
SECRET = VECTORS["keys"][0].partition(":")[2]


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda vector: f"{vector['part']} of {vector['topic']}")
def test_a_value_of_the_vectors_is_decrypted_and_encrypted_to_the_same(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"topic": vector["topic"], "part": vector["part"]}
    assert vector["value"] == CIPHER.decrypt(vector["encrypted"], **named)
    monkeypatch.setattr("os.urandom", lambda _size: bytes.fromhex(vector["nonce"]))
    first = sorted(VECTORS["keys"], key=lambda key: not key.startswith(vector["key"]))
    assert vector["encrypted"] == Cipher(*first).encrypt(vector["value"], **named)


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: vector["why"])
def test_a_value_that_was_changed_or_moved_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Undecryptable) as refused:
        CIPHER.decrypt(vector["encrypted"], topic=vector["topic"], part=vector["part"])
    assert (refused.value.topic, refused.value.part) == (vector["topic"], vector["part"])
    assert "1042" not in str(refused.value)


@pytest.mark.parametrize("vector", VECTORS["not_encrypted"], ids=lambda vector: repr(vector["value"]))
def test_what_is_not_encrypted_is_read_as_it_is_unless_it_has_to_be(vector: dict[str, Any]) -> None:
    topic, part, value = vector["topic"], vector["part"], vector["value"]
    assert value == CIPHER.decrypt(value, topic=topic, part=part)
    strict = Cipher(*VECTORS["keys"], topics=["t", "orders.*"], required=True)
    assert value == strict.decrypt(value, topic="other", part=part)
    if part == "error":
        assert value == strict.decrypt(value, topic=topic, part=part)
    else:
        with pytest.raises(Undecryptable, match="it is not encrypted, and this cipher requires that it is"):
            strict.decrypt(value, topic=topic, part=part)


@drawn()
@given(
    value=json_values,
    topic=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True),
    part=st.sampled_from(["body", "result"]),
    changed=st.integers(min_value=0),
)
def test_any_json_value_is_the_same_after_it_and_no_bit_of_it_can_be_changed(
    value: Any, topic: str, part: str, changed: int
) -> None:
    encrypted = CIPHER.encrypt(value, topic=topic, part=part)
    assert json.loads(json.dumps(value)) == CIPHER.decrypt(encrypted, topic=topic, part=part)
    data = encrypted["data"]
    at = changed % len(data)
    other = "A" if data[at] != "A" else "Q"
    is_of_padding = at == len(data) - 1 and len(data) % 4  # the last character has bits that nothing has
    if not is_of_padding:
        with pytest.raises(Undecryptable):
            CIPHER.decrypt({**encrypted, "data": data[:at] + other + data[at + 1 :]}, topic=topic, part=part)
    for moved in ({"topic": topic + "x", "part": part}, {"topic": topic, "part": {"body": "result"}.get(part, "body")}):
        with pytest.raises(Undecryptable):
            CIPHER.decrypt(encrypted, **moved)


def test_each_time_it_is_another_one_but_for_what_the_service_compares() -> None:
    assert CIPHER.encrypt(1, topic="t") != CIPHER.encrypt(1, topic="t")
    steady = [CIPHER.encrypt_json(b"1", topic, "body", steady=True) for topic in ("t", "t", "u")]
    assert steady[0] == steady[1] != steady[2]
    assert CIPHER.decrypt(steady[2].as_json(), topic="u") == 1
    assert steady[0].data[:16] != CIPHER.encrypt_json(b"2", "t", "body", steady=True).data[:16]  # no nonce twice


def test_a_key_that_is_not_there_is_named_and_no_value_of_one_is_shown() -> None:
    encrypted = CIPHER.encrypt(1, topic="t")
    other = Cipher(Cipher.new_key("k7"), Cipher.new_key("k8"))
    with pytest.raises(Undecryptable, match=r"key 'k2', which this cipher does not have \(it has k7, k8\)") as refused:
        other.decrypt(encrypted, topic="t")
    assert refused.value.key == "k2"
    assert repr(CIPHER) == "Cipher(k2, k1)"
    assert (CIPHER.key, CIPHER.key_ids) == ("k2", ("k2", "k1"))


def test_what_is_shown_as_the_id_of_a_key_is_not_longer_than_one() -> None:
    for length, is_one in ((64, True), (65, False)):
        encrypted = EncryptedValue("k" * length, "AA")
        assert (key_of(encrypted.as_json()) is not None) is (key_of(encrypted.as_text()) is not None) is is_one
    assert Cipher(Cipher.new_key("k" * 64)).key == "k" * 64


def test_another_key_of_the_same_id_does_not_decrypt() -> None:
    with pytest.raises(Undecryptable, match="another key has the id 'k2'"):
        Cipher(Cipher.new_key("k2")).decrypt(CIPHER.encrypt(1, topic="t"), topic="t")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ((), "needs a key"),
        (("# k1:abc\n",), "needs a key"),
        ((f"k1:{SECRET[:-2]}",), "key 1 of the cipher"),
        ((f"k 1:{SECRET}",), "key 1 of the cipher"),
        ((f"k1:{SECRET}", SECRET), "key 2 of the cipher"),
        ((f"k1:{SECRET}!",), "key 1 of the cipher"),
        ((f"k1:{SECRET}", f"k1:{SECRET}"), "two keys of the cipher have the id 'k1'"),
    ],
)
def test_wrong_keys_are_refused_and_not_shown(texts: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        Cipher(*texts)
    assert SECRET[:-2] not in str(refused.value)


@pytest.mark.parametrize("topics", [(), ["orders *"], ["orders.close", ""], "-orders"])
def test_topics_that_match_nothing_are_refused(topics: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="the `topics` of a cipher"):
        Cipher(f"k1:{SECRET}", topics=topics)


def test_what_is_no_cipher_or_no_key_is_refused_at_once() -> None:
    wrong: Any = f"k1:{SECRET}"
    for of in (Client, AsyncClient, Worker):
        with pytest.raises(
            TypeError, match=r"`cipher` must be a Cipher, such as Cipher\.from_file makes, not str"
        ) as refused:
            of("http://localhost:1", cipher=wrong)
        assert SECRET not in str(refused.value)
    with pytest.raises(TypeError, match="a key of a cipher is a text"):
        Cipher(wrong.encode())


def test_keys_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standard = SECRET.replace("-", "+").replace("_", "/") + "="
    (tmp_path / "keys").write_text(f"# of March\nk3:{standard} # encrypts\n\nk2:{SECRET}, {VECTORS['keys'][1]}\n")
    monkeypatch.delenv("DEFERD_CIPHER_KEYS", raising=False)
    with pytest.raises(ValueError, match="DEFERD_CIPHER_KEYS is not set"):
        Cipher.from_env()
    monkeypatch.setenv("DEFERD_CIPHER_KEYS", str(tmp_path / "keys"))
    cipher = Cipher.from_env(errors=True)
    assert cipher.key_ids == ("k3", "k2", "k1")
    assert cipher.errors
    assert cipher.decrypt(CIPHER.encrypt("x", topic="t"), topic="t") == "x"


@pytest.mark.parametrize(
    "path", [f"k1:{SECRET}", f"k1:{SECRET}=, k2:{SECRET}", f"k1:{'+/' * 21}A="], ids=["one", "two", "standard"]
)
def test_a_key_in_place_of_the_path_of_its_file_is_not_shown(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An OSError would have it in its text, and with it the log of the program."""
    monkeypatch.setenv("DEFERD_CIPHER_KEYS", path)
    with pytest.raises(ValueError, match="not shown here") as refused:
        Cipher.from_env()
    assert refused.value.__suppress_context__
    with pytest.raises(click.BadParameter, match="what was given cannot be used: this is a key") as usage:
        values.cipher(path)
    assert path[3:20] not in usage.value.message
    with pytest.raises(click.BadParameter, match="No such file or directory: '/none/k1:x'"):
        values.cipher("/none/k1:x")


def test_what_is_no_json_is_refused_before_it_is_encrypted() -> None:
    for value in (float("nan"), object(), json.loads("[" * 500 + "]" * 500)):
        with pytest.raises(InvalidInput, match="cannot be written as JSON"):
            CIPHER.encrypt(value, topic="t")
    with pytest.raises(ValueError, match="not 'headers'"):
        CIPHER.encrypt("x", topic="t", part="headers")


def test_a_text_is_cut_so_that_it_fits_encrypted() -> None:
    encrypted = CIPHER.encrypt_text("é" * 10_000, "t", "error", most=1000)
    assert 990 < len(encrypted) <= 1000
    assert set(CIPHER.decrypt(encrypted, topic="t", part="error")) == {"é"}


def test_only_a_cipher_needs_the_package_and_says_so() -> None:
    source = """
import sys
sys.modules["cryptography"] = None
import deferd, deferd.client.encrypted_calls, deferd.outbox.calls, deferd.testing.eager
deferd.Client("http://127.0.0.1:1").close()
print(len(deferd.Cipher.new_key("k1")))
deferd.Cipher(deferd.Cipher.new_key("k1"))
"""
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == "46\n"
    assert "a cipher needs the package cryptography: pip install '.[encryption]'" in ran.stderr
