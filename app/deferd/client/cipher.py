"""Encrypts the parts of jobs that only an application may read, with AES-256-GCM. Needs the extra `encryption`."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from deferd.client.errors import Undecryptable
from deferd.client.request_body import encode, not_json
from deferd.client.requests import parsed
from deferd.contract.encrypted_values import KEY_ID_LENGTH, MARK, VERSION, EncryptedValue, read_encrypted
from deferd.contract.limits import TOPIC_LENGTH, TOPIC_OR_PATTERN
from deferd.contract.topic_patterns import TopicPatterns

KEYS_VARIABLE = "DEFERD_CIPHER_KEYS"
"""Environment variable that names the file with the keys."""
_KEY_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{KEY_ID_LENGTH - 1}}}")
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]*")
_KEY_IN_TEXT: Final = re.compile(r":[A-Za-z0-9+/_-]{43}")
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_JSON_PARTS: Final = frozenset({"body", "result"})


class Cipher:
    """The keys of an application, and which parts of jobs they encrypt.

    ::

        client = Client(cipher=Cipher.from_file("/run/secrets/deferd-cipher-keys"))
        worker = Worker(cipher=Cipher("k2:7mJq...", "k1:Wv0c..."))

    `keys` are texts such as ``k2:<base64 of 32 bytes>``, as `deferd cipher new-key` prints them; one text may have
    several, separated by spaces, commas or line breaks, and comments from a `#` to the end of its line. The first key
    encrypts, and all of them decrypt.

    Bodies and results are encrypted. `headers` and `errors` encrypt the texts of headers, and of what went wrong, too.
    Topic, id, tags, group, times, names of headers and sizes stay readable, and so does the progress of a job.

    `topics` are the topics or patterns whose jobs are encrypted, by default all. What is encrypted is decrypted in
    every topic, and what is not is read as it is; with `required` a body or a result that is not encrypted, in one of
    these topics, is Undecryptable.

    Raises:
        ValueError: there is no key, one is malformed (it is not shown), two have the same id, or `topics` has nothing
            that can match a topic.
        TypeError: a key is not a text.
        ImportError: the package cryptography is not installed.
    """

    def __init__(
        self,
        *keys: str,
        topics: str | Sequence[str] = "*",
        headers: bool = False,
        errors: bool = False,
        required: bool = False,
    ) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 (of an extra)
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as error:
            from deferd.version import how_to_install  # noqa: PLC0415 (takes a millisecond)

            text = f"a cipher needs the package cryptography: {how_to_install('encryption')}"
            raise ImportError(text, name=error.name) from error
        if not all(isinstance(text, str) for text in keys):
            raise TypeError("a key of a cipher is a text, ID:BASE64, not bytes or anything else")
        secrets = _read_keys(" ".join(_without_comments(text) for text in keys).replace(",", " ").split())
        self._keys = {key_id: AESGCM(secret) for key_id, secret in secrets.items()}
        self._invalid_tag = InvalidTag
        self.key = next(iter(secrets))
        """The id of the key that encrypts."""
        self._nonce_secret = secrets[self.key]
        self._topics = TopicPatterns(_checked([topics] if isinstance(topics, str) else topics))
        self.headers = headers
        self.errors = errors
        self.required = required

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> Cipher:
        """A cipher with the keys of a file, one a line, the one that encrypts first. The options are those of Cipher.

        Raises:
            OSError: the file cannot be read.
            ValueError, ImportError: as Cipher; also ValueError for a key in place of the path, which is not shown.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError:
            if looks_like_a_key(os.fspath(path)):  # the text of an OSError has the path
                raise ValueError("this is a key (not shown here) in place of the path of a file with keys") from None
            raise
        return cls(text, **options)

    @classmethod
    def from_env(cls, **options: Any) -> Cipher:
        """As `from_file`, with the file that the environment variable DEFERD_CIPHER_KEYS names.

        Raises ValueError also when it is not set.
        """
        path = os.environ.get(KEYS_VARIABLE)
        if not path:
            raise ValueError(f"{KEYS_VARIABLE} is not set: it names the file with the keys of the cipher")
        return cls.from_file(path, **options)

    @staticmethod
    def new_key(id: str) -> str:
        """A new key, as `keys` has it. Raises ValueError if `id` is not 1 to 64 letters, digits and ._-"""
        if not _KEY_ID.fullmatch(id):
            raise ValueError(f"the id of a key is 1 to 64 letters, digits and ._-, unlike {id!r:.100}")
        return f"{id}:{_base64(os.urandom(_KEY_BYTES))}"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of all keys, that of the one that encrypts first."""
        return tuple(self._keys)

    def __repr__(self) -> str:
        return f"Cipher({', '.join(self._keys)})"

    def is_for(self, topic: str) -> bool:
        """Whether jobs of this topic are encrypted."""
        return self._topics.match(topic)

    def encrypt(self, value: Any, *, topic: str, part: str = "body") -> Any:
        """What takes the place of a value that is the `part` of a job of `topic`.

        `part` is `body` or `result`, whose value is any JSON value, or `error` or `header:NAME`, whose value is a text.

        Raises:
            ValueError: there is no such part.
            InvalidInput: the value cannot be written as JSON.
        """
        if _is_json(part):
            return self.encrypt_json(encode(value), topic, part).as_json()
        return self.encrypt_text(value, topic, part)

    def decrypt(self, value: Any, *, topic: str, part: str = "body") -> Any:
        """The value that `encrypt` was called with. A value that is not encrypted is returned as it is.

        Raises:
            ValueError: there is no such part.
            Undecryptable: its key is not among those of this cipher, it was changed, it is of another topic or part, or
                it is not encrypted and has to be.
        """
        is_json = _is_json(part)
        try:
            encrypted = None if isinstance(value, str) is is_json else read_encrypted(value)
        except ValueError as error:
            raise Undecryptable(topic, part, str(error)) from None
        if encrypted is None:
            if self.required and is_json and self.is_for(topic):
                raise Undecryptable(topic, part, "it is not encrypted, and this cipher requires that it is")
            return value
        plain = self._opened(encrypted, topic, part)
        try:
            return parsed(plain) if is_json else plain.decode()
        except ValueError:
            raise Undecryptable(topic, part, "what is encrypted is not JSON", encrypted.key) from None

    def encrypt_json(self, plain: bytes, topic: str, part: str, *, steady: bool = False) -> EncryptedValue:
        """Encrypt JSON. Raises InvalidInput if it is none, as NaN is.

        `steady`: equal values are encrypted to equal ones, for what the service compares. The nonce is then computed
        from the value by HMAC, so two values have the same no more often than random ones.
        """
        try:
            from_json(plain, allow_inf_nan=False)
        except ValueError as error:
            raise not_json(error) from error
        return self._sealed(plain, topic, part, steady=steady)

    def encrypt_text(self, text: str, topic: str, part: str, *, most: int | None = None, steady: bool = False) -> str:
        """Encrypt a text, of which as much as leads to `most` characters at the most; `steady` as in `encrypt_json`."""
        plain = text.encode(errors="replace")
        if most is not None:
            around = len(EncryptedValue(self.key, "").as_text())
            plain = plain[: (most - around) * 3 // 4 - _NONCE_BYTES - _TAG_BYTES].decode(errors="ignore").encode()
        return self._sealed(plain, topic, part, steady=steady).as_text()

    def _sealed(self, plain: bytes, topic: str, part: str, *, steady: bool) -> EncryptedValue:
        bound_to = _bound_to(self.key, part, topic)
        nonce = self._steady_nonce(bound_to, plain) if steady else os.urandom(_NONCE_BYTES)
        return EncryptedValue(self.key, _base64(nonce + self._keys[self.key].encrypt(nonce, plain, bound_to)))

    def _steady_nonce(self, bound_to: bytes, plain: bytes) -> bytes:
        import hmac  # noqa: PLC0415 (only for schedules)

        secret = hmac.digest(self._nonce_secret, b"deferd:encrypted nonce", "sha256")
        return hmac.digest(secret, bound_to + b"\n" + plain, "sha256")[:_NONCE_BYTES]

    def _opened(self, encrypted: EncryptedValue, topic: str, part: str) -> bytes:
        key_id = encrypted.key
        key = self._keys.get(key_id)
        if key is None:
            known = ", ".join(self._keys)
            reason = f"it is encrypted with key {key_id!r:.100}, which this cipher does not have (it has {known})"
            raise Undecryptable(topic, part, reason, key_id)
        try:
            data = _bytes_of(encrypted.data)
            plain: bytes = key.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound_to(key_id, part, topic))
        except (ValueError, self._invalid_tag):
            reason = f"it was changed, is of another topic or part of a job, or another key has the id {key_id!r}"
            raise Undecryptable(topic, part, reason, key_id) from None
        return plain


def _is_json(part: str) -> bool:
    if part in _JSON_PARTS:
        return True
    if part == "error" or part.startswith("header:"):
        return False
    raise ValueError(f"the part of a job is body, result, error or header:NAME, not {part!r:.100}")


def _bound_to(key_id: str, part: str, topic: str) -> bytes:
    """What the tag covers beside the value. None of the lines can have a line break."""
    return f"{MARK}\n{VERSION}\n{key_id}\n{part}\n{topic}".encode()


def looks_like_a_key(text: str) -> bool:
    """Whether a text that should be a path has a key in it: an id, and 32 bytes in base64."""
    return _KEY_IN_TEXT.search(text) is not None


def check_cipher(cipher: object) -> None:
    """Raise TypeError for the argument `cipher` of a client or worker if it is something else, such as a key."""
    if not isinstance(cipher, Cipher):
        raise TypeError(f"`cipher` must be a Cipher, such as Cipher.from_file makes, not {type(cipher).__name__}")


def _checked(topics: Sequence[str]) -> Sequence[str]:
    """Topics and patterns that can match a topic: with others, what should be encrypted is put as plain text."""
    if not topics:
        raise ValueError("the `topics` of a cipher are empty, so it encrypts nothing; without `topics` it encrypts all")
    for topic in topics:
        if not re.fullmatch(TOPIC_OR_PATTERN, topic):
            shape = f"1 to {TOPIC_LENGTH} letters, digits and ._:- and begins with a letter or digit"
            raise ValueError(
                f"the `topics` of a cipher cannot have {topic!r:.200}: a topic is {shape}; a pattern may also have *"
            )
    return topics


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


def _read_keys(words: Sequence[str]) -> dict[str, bytes]:
    if not words:
        raise ValueError("a cipher needs a key, such as `deferd cipher new-key` makes")
    secrets: dict[str, bytes] = {}
    for number, word in enumerate(words, 1):
        key_id, _, text = word.partition(":")
        try:
            secret = _bytes_of(text.rstrip("=").replace("+", "-").replace("/", "_"))
        except ValueError:
            secret = b""
        if not _KEY_ID.fullmatch(key_id) or len(secret) != _KEY_BYTES:
            raise ValueError(
                f"key {number} of the cipher (not shown here) is not ID:BASE64 of 32 bytes: `deferd cipher new-key` "
                "makes one"
            )
        if key_id in secrets:
            raise ValueError(f"two keys of the cipher have the id {key_id!r}")
        secrets[key_id] = secret
    return secrets


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    """Raises ValueError for anything but base64 in the alphabet of URLs, without padding."""
    if not _BASE64.fullmatch(text):
        raise ValueError("not base64url without padding")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
