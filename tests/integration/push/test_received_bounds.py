"""What a target may send before the service gives its response up."""

from __future__ import annotations

import pytest
from yarl import URL

from deferd.contract import limits
from deferd.contract.push_targets import AllowedTargets
from deferd.push.http_sender import HttpSender, PushFailed, PushResponse
from tests.push_receiver import Received, Reply, receiver

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def post(reply: Reply) -> PushResponse:
    """What the sender makes of the reply, twice on one connection if that is left open."""

    async def respond(_request: Received) -> Reply:
        return reply

    sender = HttpSender(AllowedTargets(("http://127.0.0.1:*",)))
    try:
        async with receiver() as target:
            target.respond = respond
            for _ in range(2):
                response = await sender.post(URL(target.url), {}, b"{}", 20.0)
            return response
    finally:
        await sender.close()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(raw=b"", endless=INTERIM), "more than 16 interim responses"),
        (Reply(raw=b"", endless=b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), "more than 16 interim responses"),
        (Reply(raw=CHUNKED + b"1;", endless=b"x=" * 500), "not valid"),
        (Reply(raw=CHUNKED + b"0\r\n", endless=b"trailer: x\r\n" * 100), "not valid"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\n", endless=b"field: x\r\n" * 100), "not valid"),
    ],
    ids=["interim", "interim-in-bulk", "chunk-extension", "trailers", "head"],
)
async def test_a_response_without_end_is_given_up(reply: Reply, reason: str) -> None:
    with pytest.raises(PushFailed, match=reason):
        await post(reply)


async def test_some_interim_responses_are_passed_over() -> None:
    response = await post(Reply(raw=INTERIM * 16 + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"))
    assert (response.status, response.body, response.is_whole) == (200, b"ok", True)


async def test_a_body_in_chunks_of_a_byte_is_read() -> None:
    body = b"1\r\nx\r\n" * limits.PUSH_RESULT_BYTES
    response = await post(Reply(raw=CHUNKED + body + b"0\r\n\r\n"))
    assert (len(response.body), response.is_whole) == (limits.PUSH_RESULT_BYTES, True)
