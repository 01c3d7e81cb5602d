"""The DEFERD commands: the full life of a job. Each is one request of the HTTP API, and replies what its response says.

A body or result is a string: it is stored as a JSON string, and comes back as it is. With the option JSON it is the
JSON text of any value instead, both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from deferd.api.resp.options import (
    Option,
    Options,
    count,
    duration,
    flag,
    instant,
    json,
    json_value,
    read_options,
    text,
)
from deferd.api.resp.replies import array, items_of
from deferd.api.resp.session import Session, command
from deferd.contract.fields import POLICY, Kind
from deferd.contract.operations import jobs as contract
from deferd.contract.operations.jobs import POP_JOBS
from deferd.contract.operations.operation import Operation
from deferd.engine.time_slice import TimeSlice

ANY = b"*"
"""Instead of an id: the service makes one. Instead of a receipt: the receipt of the live delivery."""
_AS_JSON = "as_json"
"""Not a field of HTTP: how bodies and results are written."""
_JSON: Options = {b"JSON": flag(_AS_JSON, True)}
_WHEN: Options = {b"DELAY": duration("delay"), b"AT": instant("run_at")}
_OF_KIND: dict[Kind, Callable[[str], Option]] = {
    Kind.SECONDS: duration,
    Kind.COUNT: count,
    Kind.BACKOFF: json,
    Kind.WINDOW: json,
    Kind.ON_END: json,
    Kind.TEXT: Option,
}
_POLICY: Options = {
    **{field.name.replace("_", "").upper().encode(): _OF_KIND[field.kind](field.name) for field in POLICY},
    b"TAG": Option("tags", collects=True),
    b"HEADER": Option("headers", words=2, collects=True),
    b"GROUP": Option("group", lambda word, value: text(word, value) or None),
    b"PRIORITY": count("priority"),
}
PUT_OPTIONS: Options = {
    **_JSON,
    **_WHEN,
    **_POLICY,
    b"ONCONFLICT": Option("on_conflict"),
    b"CONFLICTWITH": Option("conflict_with"),
    b"IFRESERVED": Option("if_reserved"),
    b"MAXWAIT": duration("max_wait"),
    b"MAXITEMS": count("max_items"),
    b"UNIQUEFOR": duration("unique_for"),
    b"BATCH": Option("batch"),
    b"TRACEPARENT": Option("traceparent"),
    b"DURABILITY": Option("durability"),
}
CHANGE_OPTIONS: Options = {**_JSON, **_WHEN, **_POLICY, b"BODY": Option("body", lambda _, value: value)}
POP_OPTIONS: Options = {
    **_JSON,
    b"COUNT": count("count"),
    b"WAIT": duration("wait"),
    b"TTR": duration("ttr"),
    b"CONSUMER": Option("consumer"),
    b"REQUESTID": Option("request_id"),
}
GET_OPTIONS: Options = {
    **_JSON,
    b"WAIT": duration("wait"),
    b"UNTIL": Option("until"),
    b"AFTER": instant("after"),
}
FINISH_OPTIONS: Options = {**_JSON, b"RESULT": Option("result", lambda _, value: value), b"PUT": json("put")}
RELEASE_OPTIONS: Options = {b"DELAY": duration("delay"), b"ERROR": Option("error"), b"SNOOZE": flag("count", False)}
TOUCH_OPTIONS: Options = {b"TTR": duration("ttr"), b"PROGRESS": json("progress")}
BURY_OPTIONS: Options = {b"ERROR": Option("error")}
CANCEL_OPTIONS: Options = {
    b"IFRESERVED": Option("if_reserved"),
    b"FOLLOWUP": Option("follow_up"),
    b"DURABILITY": Option("durability"),
}


@command(contract.PUT_JOB, arity=-4)
async def put(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.PUT topic id|* body [options]``: `POST /jobs`."""
    _, topic, job_id, body, *words = command
    fields = read_options(words, PUT_OPTIONS)
    as_json = fields.pop(_AS_JSON, False)
    job = {"topic": text("topic", topic), "body": _value(session, "body", body, as_json=as_json), **fields}
    if job_id != ANY:
        job["id"] = text("id", job_id)
    return _reply(session, await session.call(contract.PUT_JOB, {}, body=job), as_json=as_json)


@command(POP_JOBS, arity=-2)
async def pop(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.POP topic [topic ...] [COUNT n] [WAIT ms] [TTR ms] [CONSUMER name] [REQUESTID id] [JSON]``:
    `POST /topics/{topic}/pop`.

    The topics end before the first word that is the name of an option. Without WAIT it does not wait. Replies a list of
    jobs.
    """
    last = next((at for at in range(2, len(command)) if command[at].upper() in POP_OPTIONS), len(command))
    topics = ",".join(text("topic", topic) for topic in command[1:last])
    fields = read_options(command[last:], POP_OPTIONS)
    as_json = fields.pop(_AS_JSON, False)
    response = await session.call_while_connected(POP_JOBS, {"topic": topics}, {"wait": 0, **fields})
    # The JSON is {"jobs":[...]}; the reply is the list alone.
    popped = bytes(response.body)[len(b'{"jobs":') : -1]
    slice_, written = TimeSlice(), []
    for job in items_of(popped):
        written.append(session.replies.of_json(job, bodies_as_json=as_json))
        await slice_.end_if_over()
    return array(written)


@command(contract.GET_JOB, arity=-3)
async def get(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.GET topic id [WAIT ms] [UNTIL end|progress] [AFTER at] [JSON]``: `GET /jobs/{topic}/{id}`."""
    fields = read_options(command[3:], GET_OPTIONS)
    as_json = fields.pop(_AS_JSON, False)
    call = session.call_while_connected if "wait" in fields else session.call
    return _reply(session, await call(contract.GET_JOB, _path(command), fields), as_json=as_json)


@command(contract.CHANGE_JOB, arity=-3)
async def change(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.CHANGE topic id [BODY body] [options]``: `PATCH /jobs/{topic}/{id}`."""
    fields = read_options(command[3:], CHANGE_OPTIONS)
    as_json = fields.pop(_AS_JSON, False)
    if "body" in fields:
        fields["body"] = _value(session, "BODY", fields["body"], as_json=as_json)
    return _reply(session, await session.call(contract.CHANGE_JOB, _path(command), body=fields), as_json=as_json)


@command(contract.CANCEL_JOB, arity=-3)
async def cancel(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.CANCEL topic id [IFRESERVED cancel|refuse] [FOLLOWUP cancel|keep] [DURABILITY level]``:
    `DELETE /jobs/{topic}/{id}`.
    """
    fields = read_options(command[3:], CANCEL_OPTIONS)
    return _reply(session, await session.call(contract.CANCEL_JOB, _path(command), fields))


@command(contract.FINISH_JOB, arity=-4)
async def finish(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.FINISH topic id receipt|* [RESULT result] [PUT jobs] [JSON]``: `POST /jobs/{topic}/{id}/finish`."""
    fields = read_options(command[4:], FINISH_OPTIONS)
    as_json = fields.pop(_AS_JSON, False)
    if "result" in fields:
        fields["result"] = _value(session, "RESULT", fields["result"], as_json=as_json)
    return await _end_delivery(session, contract.FINISH_JOB, command, fields)


@command(contract.RELEASE_JOB, arity=-4)
async def release(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.RELEASE topic id receipt|* [DELAY ms] [ERROR text] [SNOOZE]``: `POST /jobs/{topic}/{id}/release`."""
    return await _end_delivery(session, contract.RELEASE_JOB, command, read_options(command[4:], RELEASE_OPTIONS))


@command(contract.TOUCH_JOB, arity=-4)
async def touch(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.TOUCH topic id receipt|* [TTR ms] [PROGRESS json]``: `POST /jobs/{topic}/{id}/touch`."""
    return await _end_delivery(session, contract.TOUCH_JOB, command, read_options(command[4:], TOUCH_OPTIONS))


@command(contract.BURY_JOB, arity=-4)
async def bury(session: Session, command: list[bytes]) -> bytes:
    """``DEFERD.BURY topic id receipt|* [ERROR text]``: `POST /jobs/{topic}/{id}/bury`."""
    return await _end_delivery(session, contract.BURY_JOB, command, read_options(command[4:], BURY_OPTIONS))


async def _end_delivery(
    session: Session, operation: Operation[Any], command: list[bytes], fields: dict[str, Any]
) -> bytes:
    if command[3] != ANY:
        fields["receipt"] = text("receipt", command[3])
    return _reply(session, await session.call(operation, _path(command), body=fields))


def _path(command: list[bytes]) -> dict[str, str]:
    return {"topic": text("topic", command[1]), "id": text("id", command[2])}


def _value(session: Session, name: str, value: bytes, *, as_json: bool) -> Any:
    if as_json:
        return json_value(name, value)
    string = text(name, value)
    session.check_size_as_json([string])
    return string


def _reply(session: Session, response: Response, *, as_json: bool = False) -> bytes:
    return session.replies.of_json(bytes(response.body), bodies_as_json=as_json)
