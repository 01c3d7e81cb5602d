"""Examples of the requests and responses of `deferd.api.routes.push`."""

from __future__ import annotations

from typing import Any

_URL = "https://shop.example.com/hooks/close"

EXAMPLES: dict[str, list[Any]] = {
    "SetPush": [
        {"url": _URL, "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]},
        {"url": _URL, "timeout": 10, "max_in_flight": 50, "rate": 100, "mode": "batch"},
    ],
    "Push": [
        {
            "topic": "orders.close",
            "url": _URL,
            "secret_count": 1,
            "timeout": 30,
            "max_in_flight": 10,
            "rate": None,
            "header_names": [],
            "mode": "job",
        }
    ],
    "RemovedPush": [{"topic": "orders.close", "removed": True}],
    "TestedPush": [
        {
            "message_id": "msg_test_5f0c9a3be7d2481c",
            "took": 0.042,
            "status": 200,
            "response": '{"ok": true}',
            "error": None,
        }
    ],
}
