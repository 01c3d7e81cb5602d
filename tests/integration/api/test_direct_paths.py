"""The direct paths against the general one: the same bytes, states and metrics for generated requests."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.api.auth.api_keys import hash_of
from tests.drawn_input import drawn
from tests.integration.api.direct_worlds import HEADS, CountingDirectPath, Request, Worlds
from tests.integration.api.drawn_objects import BODIES, ENDS
from tests.integration.store.store_servers import StoreServer


@pytest.fixture(scope="module")
def worlds(running_server: StoreServer) -> Iterator[Worlds]:
    running_server.command("FLUSHALL")
    both = Worlds(running_server.url, f"{running_server.url}/1")
    yield both
    both.close()


QUERIES = st.sampled_from(
    [
        *(
            b"wait=0",
            b"wait=0&count=2",
            b"wait=0&ttr=30.5",
            b"wait=0&consumer=w-1",
            b"wait=0&request_id=r.1",
            b"request_id=r.2&wait=0",
            b"wait=0&request_id=r.3&count=2",
            b"wait=0&request_id=%72.3",
            b"wait=0&request_id=r.3&request_id=r.3",
            b"wait=0&request_id=r.3&request%5Fid=r.3",
            b"wait=0&request_id=",
            b"wait=0&my_request_id=r.3",
            b"wait=0&x=1",
        ),
        *(b"wait=0&wait=0", b"wait=0&count=0", b"wait=0&consumer=%20", b"wait=0&consumer=%41", b"wait=0.0", b"wait=0&"),
        b"wait=0_0",
        *(
            b"wait=0&ttr=1e999",
            b"wait=nan",
            b"wait=-1",
            b"wait=61",
            b"wait=0&count=1.0",
            b"wait=0#x",
            b"wait=0&consumer=",
        ),
    ]
)
POPPED = st.sampled_from(
    [b"{t}"] * 6
    + [b"{t},{t}.more", b"{t}.more,{t}", b"{t}.*,{t}", b"{t}.*", b"other,{t}*x"]
    + [b"{t},{t}", b"{t},", b"{t},*,*", b"%2A", b"{t}%2C{t}.more", b","]
)
PATH_IDS = st.sampled_from([b"a", b"b"] * 6 + [b"-a", b"a%62", b"a%2Fb", b"A.b_c:d-1", b"x" * 256])


CANCEL_QUERIES = st.sampled_from(
    [b""] * 4
    + [b"?if_reserved=refuse"] * 2
    + [b"?follow_up=keep", b"?if_reserved=refuse&follow_up=keep", b"?if_reserved=cancel&follow_up=cancel", b"?"]
    + [b"?durability=memory", b"?durability=fsync&if_reserved=refuse", b"?durability=replicated:1", b"?durability=x"]
    + [b"?if_reserved=x", b"?x=1", b"?if_reserved=refuse&if_reserved=refuse", b"?follow_up"]
)


@st.composite
def any_request(draw: st.DrawFn) -> Request:
    head = draw(st.sampled_from(HEADS[:1] * 12 + HEADS))
    kind = draw(st.sampled_from(["put", "put", "pop", "end", "end", "cancel"]))
    if kind == "put":
        return Request(head, b"POST /jobs", draw(BODIES))
    if kind == "pop":
        line = draw(st.sampled_from([b"GET", b"POST"])) + b" /topics/%b/pop?" % draw(POPPED) + draw(QUERIES)
        if line.startswith(b"GET") or draw(st.booleans()):
            return Request(b"Host: x", line)
        return Request(head, line, draw(st.sampled_from([b"", b"{}", b" {}", b"null", b"[]"])))
    job_id = draw(PATH_IDS)
    if kind == "end":
        verb = draw(st.sampled_from(sorted(ENDS)))
        return Request(head, b"POST /jobs/{t}/%b/%b" % (job_id, verb), draw(ENDS[verb]))
    return Request(b"Host: x", b"DELETE /jobs/{t}/%b%b" % (job_id, draw(CANCEL_QUERIES)))


SOMETIMES = st.integers(0, 7).map(lambda choice: choice == 0)
USUAL_PUT = Request(HEADS[0], b"POST /jobs", b'{"topic":"{t}","id":"a"}')
BEGINNINGS = st.sampled_from([[], [USUAL_PUT], [USUAL_PUT, Request(b"Host: x", b"GET /topics/{t}/pop?wait=0")]])
"""What makes the next requests meet a job that is ready or held."""
REQUESTS = st.builds(
    lambda first, more: first + more,
    BEGINNINGS,
    st.lists(
        st.builds(lambda request, is_split: request._replace(is_split=is_split), any_request(), SOMETIMES),
        min_size=1,
        max_size=8,
    ),
)


@drawn(400)
@given(requests=REQUESTS)
def test_generated_requests_have_the_same_effects_and_responses(worlds: Worlds, requests: list[Request]) -> None:
    worlds.compare(requests)


JOB = b'{"topic":"{t}","id":"a","body":{"n":1}}'
USUAL = [
    ("/jobs", Request(HEADS[0], b"POST /jobs", JOB), b"201 Created"),
    ("/jobs", Request(HEADS[0], b"POST /jobs", b'{"topic":"{t}","delay":0.5}'), b"201 Created"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"GET /topics/{t}/pop?wait=0"), b"200 OK"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"POST /topics/{t}/pop?wait=0&count=9"), b"200 OK"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"GET /topics/{t},{t}.more/pop?wait=0"), b"200 OK"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"GET /topics/{t}.*,{t}/pop?wait=0&request_id=r"), b"200 OK"),
    ("/jobs/{topic}/{id}/finish", Request(HEADS[0], b"POST /jobs/{t}/a/finish", b'{"receipt":"x"}'), b"404 Not Found"),
    ("/jobs/{topic}/{id}", Request(b"Host: x", b"DELETE /jobs/{t}/a"), b"404 Not Found"),
    ("/jobs/{topic}/{id}", Request(b"Host: x", b"DELETE /jobs/{t}/a?if_reserved=refuse"), b"404 Not Found"),
    ("/jobs/{topic}/{id}", Request(b"Host: x", b"DELETE /jobs/{t}/a?durability=memory"), b"404 Not Found"),
    *(
        (
            f"/jobs/{{topic}}/{{id}}/{verb}",
            Request(HEADS[0], f"POST /jobs/{{t}}/a/{verb}".encode(), body),
            b"404 Not Found",
        )
        for verb, body in (
            ("release", b'{"receipt":"x","delay":5,"error":"502"}'),
            ("touch", b'{"receipt":"x","ttr":30.5}'),
            ("bury", b'{"receipt":"x","error":"502"}'),
        )
    ),
]


@pytest.mark.parametrize(("route", "request_", "status"), USUAL, ids=lambda value: str(value)[:30])
def test_usual_requests_take_their_direct_path(worlds: Worlds, route: str, request_: Request, status: bytes) -> None:
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    before = worlds.direct.direct_path.taken[route]
    [response] = worlds.compare([request_])
    assert response.startswith(b"HTTP/1.1 " + status)
    assert worlds.direct.direct_path.taken[route] == before + 1


@pytest.mark.parametrize(("route", "request_", "status"), USUAL, ids=lambda value: str(value)[:30])
def test_a_request_that_names_an_instant_takes_its_direct_path_until_then(
    worlds: Worlds, route: str, request_: Request, status: bytes
) -> None:
    """Each names another one."""
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    instants = [9_000_000_000_000, 9_000_000_000_001, 1_000_000_000_000, 1_000_000_000_001]
    named = [
        request_._replace(head=b"%b\r\ndeferd-not-after: %d\r\nx-more: %b" % (request_.head, instant, route.encode()))
        for instant in instants
    ]
    worlds.compare(named[:1] * 2)
    before = worlds.direct.direct_path.taken[route]
    [*_, last, late, later] = responses = worlds.compare(named)
    assert worlds.direct.direct_path.taken[route] == before + 2
    assert last[9:12] in {status[:3], b"409"}
    assert late == later
    assert late.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_late"' in late
    assert all(response.count(b"deferd-time: <ms>\r\n") == 1 for response in responses)


def test_what_comes_too_late_does_nothing(worlds: Worlds) -> None:
    late = HEADS[0] + b"\r\ndeferd-not-after: 1000000000000"
    put, cancel = Request(HEADS[0], b"POST /jobs", JOB), Request(b"Host: x", b"DELETE /jobs/{t}/a")
    responses = worlds.compare(
        [put._replace(head=late), cancel, put, cancel._replace(head=late, is_split=True), cancel]
    )
    assert [response[9:12] for response in responses] == [b"408", b"404", b"201", b"408", b"200"]


def test_heads_that_came_twice_in_turn_with_others_are_known(worlds: Worlds) -> None:
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    before = worlds.direct.direct_path.unparsed.copy()
    put = Request(b"Host: by-turns\r\nContent-Length: %d", b"POST /jobs", JOB)
    pop = Request(b"Host: by-turns", b"POST /topics/{t}/pop?wait=0")
    worlds.compare([put, pop] * 3)
    assert worlds.direct.direct_path.unparsed - before == Counter({"/jobs": 1, "/topics/{topic}/pop": 1})


@pytest.mark.parametrize(("route", "request_", "status"), USUAL, ids=lambda value: str(value)[:30])
def test_usual_requests_with_a_new_head_each_time_take_their_direct_path(
    worlds: Worlds, route: str, request_: Request, status: bytes
) -> None:
    direct = worlds.direct.direct_path
    assert isinstance(direct, CountingDirectPath)
    taken, unparsed = direct.taken[route], direct.unparsed[route]
    for number, is_split in enumerate([False, True]):
        head = b"%b\r\nX-Request-Id: %d.%d" % (request_.head, number, zlib.crc32(request_.line + request_.body))
        [response] = worlds.compare([request_._replace(head=head, is_split=is_split)])
        assert response.startswith(b"HTTP/1.1 " + status)
    assert (direct.taken[route], direct.unparsed[route]) == (taken + 2, unparsed)


@pytest.mark.parametrize("header", [b"Connection: close", b"Deferd-Via: console", b"Content-Encoding: gzip"])
def test_a_new_head_with_an_effect_has_the_same_one(worlds: Worlds, header: bytes) -> None:
    put = Request(HEADS[0] + b"\r\nX-Request-Id: 1\r\n" + header, b"POST /jobs", JOB)
    worlds.compare([put, put._replace(line=b"POST /jobs?x=1"), put._replace(is_split=True)])


def test_a_job_lives_its_life_on_direct_paths(worlds: Worlds) -> None:
    pop = Request(b"Host: x", b"GET /topics/{t}/pop?wait=0")
    finish = Request(HEADS[0], b"POST /jobs/{t}/a/finish", b'{"receipt":"{receipt}","result":[1]}')
    put = Request(HEADS[0], b"POST /jobs", JOB)
    cancel = Request(b"Host: x", b"DELETE /jobs/{t}/a")
    durably = Request(b"Host: x", b"DELETE /jobs/{t}/a?durability=memory")
    replicated = Request(b"Host: x", b"DELETE /jobs/{t}/a?durability=replicated:1")
    requests = [put, put, pop, finish, finish, put, cancel, cancel, finish, put, replicated, durably, durably]
    responses = worlds.compare(requests)
    statuses = [int(response[9:12]) for response in responses]
    assert statuses == [201, 409, 200, 200, 404, 201, 200, 404, 404, 201, 422, 200, 404]
    assert responses[-2].endswith(b'"was":"ready","durability":"memory"}')


def test_a_store_that_has_lost_its_scripts_is_sent_them_again(worlds: Worlds, running_server: StoreServer) -> None:
    for _, request, status in USUAL:
        running_server.command("FUNCTION", "FLUSH")
        [response] = worlds.compare([request])
        assert response.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("size", [1000, 20_000, 200_000])
def test_large_jobs_are_kept_and_popped(worlds: Worlds, size: int) -> None:
    large = b'{"topic":"{t}","id":"a","body":"%b"}' % (b"x" * size)
    keep = b'{"topic":"{t}","id":"a","on_conflict":"keep"}'
    responses = worlds.compare(
        [
            Request(HEADS[0], b"POST /jobs", large),
            Request(HEADS[0], b"POST /jobs", keep),
            Request(b"Host: x", b"POST /topics/{t}/pop?wait=0"),
        ]
    )
    assert [response[9:12] for response in responses] == [b"201", b"200", b"200"]
    assert all(b"x" * size in response for response in responses)


HOLDERS = ("put", "pop", "some-topics", "limited", "nobody")


def token_of(holder: str) -> str:
    return f"the-token-of-{holder}".ljust(43, "x")


@pytest.fixture(scope="module")
def keyed_worlds(running_server: StoreServer) -> Iterator[Worlds]:
    keys = [
        f'[[key]]\nname = "{name}"\nhash = "{hash_of(token_of(name))}"\nscopes = {json.dumps(scopes)}\n{more}\n'
        for name, scopes, more in (
            ("put", ["put", "cancel"], 'topics = ["*"]'),
            ("pop", ["pop", "read"], 'topics = ["*"]'),
            ("some-topics", ["put", "pop", "cancel"], 'topics = ["t*"]'),
            ("limited", ["put", "pop", "cancel"], 'topics = ["*"]\nmax_body_bytes = 60'),
        )
    ]
    both = Worlds(f"{running_server.url}/2", f"{running_server.url}/3", keys="\n".join(keys))
    yield both
    both.close()


@pytest.mark.parametrize("holder", HOLDERS)
def test_with_keys_the_responses_are_the_same(keyed_worlds: Worlds, holder: str) -> None:
    head = b"Host: x\r\nAuthorization: Bearer %b\r\nContent-Length: %%d" % token_of(holder).encode()
    lives = [
        Request(head, b"POST /jobs", JOB),
        Request(head, b"POST /jobs", b'{"topic":"{t}","id":"b","body":"%b"}' % (b"x" * 60)),
        Request(head, b"POST /jobs", b'{"topic":"other","id":"b","on_conflict":"keep"}'),
        Request(head, b"POST /topics/{t}/pop?wait=0"),
        *(
            Request(head, b"POST /jobs/{t}/a/%b" % verb, b'{"receipt":"{receipt}"}')
            for verb in (b"touch", b"finish", b"bury", b"release")
        ),
        Request(head, b"DELETE /jobs/{t}/b"),
    ]
    for _ in range(3):
        keyed_worlds.compare(lives)
    taken = keyed_worlds.direct.direct_path
    assert isinstance(taken, CountingDirectPath)
    assert bool(taken.taken) is (holder != "nobody")
    taken.taken.clear()
