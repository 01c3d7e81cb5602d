"""The fields of a push, and signatures."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from deferd.api.validation_errors import field_errors
from deferd.contract.operations.push import SetPush
from deferd.contract.webhook_signature import BadSignature, secret_key, signatures, verify
from tests.drawn_input import drawn

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "https://hooks.example.com/close"


def errors_of(**fields: Any) -> dict[str, str]:
    """The errors of a body, by field; nothing of them shows a secret."""
    body = {"url": URL, "secrets": [SECRET], **fields}
    with pytest.raises(ValidationError) as caught:
        SetPush.model_validate(body)
    errors = field_errors(caught.value, "body", body, SetPush.FIELDS_THAT_ERRORS_QUOTE)
    assert "MfKQ" not in repr(errors)
    return {".".join(map(str, error.path)): error.message for error in errors}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"url": "example.com"}, "body.url", "must begin with https:// or http://"),
        ({"url": "https://a/" + "b" * 2048}, "body.url", "must have at most 2048 characters"),
        ({"url": 1}, "body.url", "must be a string"),
        ({"secrets": []}, "body.secrets", "must have at least 1 items"),
        ({"secrets": [SECRET, "whsec_" + "A" * 32, "whsec_" + "B" * 32]}, "body.secrets", "must have at most 2 items"),
        ({"secrets": [SECRET, SECRET]}, "body.secrets", "must not repeat a secret"),
        ({"secrets": SECRET}, "body.secrets", "must be a list"),
        ({"secrets": None}, "body.secrets", "must be a list"),
        ({"secrets": [1]}, "body.secrets.0", "must be a string"),
        (
            {"secrets": [SECRET.removeprefix("whsec_")]},
            "body.secrets.0",
            "must be whsec_ and the base64 of 24 to 64 bytes; it does not begin with whsec_",
        ),
        (
            {"secrets": ["whsec_MfKQ9r8G"]},
            "body.secrets.0",
            "must be whsec_ and the base64 of 24 to 64 bytes; it has 6 bytes",
        ),
        (
            {"secrets": ["whsec_MfKQ9r8GKYqrTwj!!"]},
            "body.secrets.0",
            "must be whsec_ and the base64 of 24 to 64 bytes; what follows whsec_ is not base64",
        ),
        ({"timeout": 0}, "body.timeout", "must be at least 0.1 seconds"),
        ({"timeout": 901}, "body.timeout", "must be at most 900 seconds"),
        ({"max_in_flight": 0}, "body.max_in_flight", "must be at least 1"),
        ({"max_in_flight": 1001}, "body.max_in_flight", "must be at most 1000"),
        ({"max_in_flight": 1.5}, "body.max_in_flight", "must be a whole number"),
        ({"rate": 0}, "body.rate", "must be at least 0.01"),
        ({"mode": "both"}, "body.mode", "must be 'job' or 'batch'"),
        ({"extra": 1}, "body.extra", "is not a known field"),
        ({"headers": {"Host": "evil"}}, "body.headers", "must not have 'Host', which the service sets itself"),
        ({"headers": {"Webhook-Id": "x"}}, "body.headers", "must not have 'Webhook-Id'"),
        ({"headers": {"deferd-x": "x"}}, "body.headers", "must not have 'deferd-x'"),
        ({"headers": {"a b": "x"}}, "body.headers", "must have names of HTTP headers"),
        ({"headers": {"a": "x\r\ny: z"}}, "body.headers.a", "must match"),
        ({"headers": {"a": "x", "A": "y"}}, "body.headers", "must not repeat a name"),
        ({"headers": {"a": "x" * 4096}}, "body.headers", "must have at most 4096 bytes"),
        ({"headers": {str(number): "x" for number in range(17)}}, "body.headers", "at most 16"),
    ],
)
def test_a_wrong_field_is_refused_with_its_bound(fields: dict[str, Any], field: str, message: str) -> None:
    found = errors_of(**fields)
    assert message in found[field]


@drawn(200)
@given(st.binary(max_size=300), st.binary(min_size=24, max_size=64), st.integers(0, 2))
def test_signatures_are_those_of_another_implementation(body: bytes, key: bytes, others: int) -> None:
    text = body.hex().encode()  # the other one wants text
    secret = "whsec_" + base64.b64encode(key).decode()
    at = datetime.now(UTC)
    seconds = int(at.timestamp())
    theirs = Webhook(secret).sign("msg_1", at, text.decode())
    keys = [bytes([number]) * 24 for number in range(others)]
    ours = signatures([*keys, secret_key(secret)], "msg_1", seconds, text)
    assert ours.split(" ")[-1] == theirs
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(seconds), "webhook-signature": ours}
    verify([secret], headers, text, seconds)
    for changed in ({"webhook-id": "msg_2"}, {"webhook-timestamp": str(seconds + 1)}, {"webhook-signature": "v1,AAAA"}):
        with pytest.raises(BadSignature):
            verify([secret], headers | changed, text, seconds)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify('"x"', headers | changed)


@pytest.mark.parametrize("seconds", [301, -301])
def test_an_old_or_early_request_is_refused(seconds: int) -> None:
    headers = {
        "webhook-id": "a",
        "webhook-timestamp": "1000000",
        "webhook-signature": signatures([secret_key(SECRET)], "a", 1_000_000, b""),
    }
    verify([SECRET], headers, b"", 1_000_000 + seconds // 301 * 300)
    with pytest.raises(BadSignature, match="300 seconds"):
        verify([SECRET], headers, b"", 1_000_000 + seconds)
