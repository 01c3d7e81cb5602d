"""How values that only an application can read look. The service stores them as it does all others, and opens none.

A JSON value, such as a body, is an object in place of the value, and a text, such as a header, a text in its place::

    {"deferd:encrypted": "1", "key": "k2", "data": "..."}
    deferd:encrypted:1:k2:...

They have the version of this form, the id of the key, and the data: a nonce of 12 bytes, the ciphertext of AES-256-GCM
and its tag of 16 bytes, together in the base64 alphabet of URLs without padding. See docs/encryption.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MARK = "deferd:encrypted"
VERSION = "1"
KEY_ID_LENGTH = 64
_PREFIX = f"{MARK}:"


class EncryptedValue(NamedTuple):
    """An encrypted value: the id of its key, and its data as text."""

    key: str
    data: str

    def as_json(self) -> dict[str, str]:
        """The object that takes the place of a JSON value."""
        return {MARK: VERSION, "key": self.key, "data": self.data}

    def as_text(self) -> str:
        """The text that takes the place of a text."""
        return f"{_PREFIX}{VERSION}:{self.key}:{self.data}"


def read_encrypted(value: Any) -> EncryptedValue | None:
    """What a JSON value or a text has encrypted in it; None if it is not encrypted.

    Raises:
        ValueError: it has the mark of an encrypted value, and is none of this version.
    """
    parts: list[Any]
    if isinstance(value, str) and value.startswith(_PREFIX):
        parts = value.removeprefix(_PREFIX).split(":")
    elif isinstance(value, Mapping) and MARK in value:
        parts = [value[name] for name in (MARK, "key", "data") if name in value]
        parts += value.keys() - {MARK, "key", "data"}
    else:
        return None
    if parts[0] != VERSION:
        raise ValueError(f"version {parts[0]!r:.40} of encrypted values is not known")
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise ValueError("it is marked as encrypted, and has not the parts of an encrypted value")
    _, key, data = parts
    return EncryptedValue(key, data)


def key_of(value: Any) -> str | None:
    """The id of the key with which a JSON value or a text is encrypted; None if it is not, or not of this version.

    None also for an id that no key has: pages show it in place of the value, and anybody may have put it.
    """
    try:
        encrypted = read_encrypted(value)
    except ValueError:
        return None
    return None if encrypted is None or len(encrypted.key) > KEY_ID_LENGTH else encrypted.key
