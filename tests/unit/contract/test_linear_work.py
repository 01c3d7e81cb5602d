"""The work that an input causes grows linearly with its size: for regular expressions and for reading bodies.

Each row has the inputs that are worst for it. From the smallest size to the largest, 16 times as much, quadratic work
grows by 256; the bound leaves a factor of four over linear for caches and noise. What is measured is the CPU time of
the thread, so a busy machine does not matter: the least of several runs of the smallest size, and of a larger one the
first within the bound.
"""

from __future__ import annotations

import ast
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

import deferd
from deferd import settings
from deferd.api import body_decoding, incoming_request, problem_details, request_body
from deferd.api.app import create_app
from deferd.api.auth import api_keys, key_source
from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.operation import OperationRoute
from deferd.api.resp import replies, session
from deferd.api.routes import deliveries, queries, schedules_and_calendars, topics
from deferd.contract import bulk_model, ends, flow, json_values, model, windows
from deferd.contract.errors import DeferdError
from deferd.contract.operations import operation as operation_rows
from deferd.contract.operations import push, relays
from deferd.contract.operations import schedules_and_calendars as schedule_models
from deferd.contract.push_targets import TargetPattern
from deferd.engine import consistency, partitions, scripts
from deferd.engine.inspection import normalized_errors
from deferd.engine.record import Receipt
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.server.http import asgi_call, heads
from deferd.server.http.direct_path import DirectPath
from deferd.store import preflight, server_info, valkey_process

pytestmark = pytest.mark.usefixtures("no_garbage_collection")

SMALLEST = 32 * 1024
LARGER = (2 * SMALLEST, 16 * SMALLEST)
"""What grows much faster than linearly fails at the first of them, before it takes minutes."""
FACTOR_OVER_LINEAR = 4
RUNS = 3
LEAST_S = 0.0005
"""Less cannot be measured, and counts as this."""
MOST_S = 5.0

ROOT = Path(deferd.__file__).parent
SERVICE = ("api", "cli/service/serve.py", "contract", "engine", "server", "settings.py", "store")
"""The code that reads input of others. The client, the commands and the benchmark read input of their own user."""
SCHEDULES = "contract/operations/schedules_and_calendars.py"
RELAYS = "contract/operations/relays.py"
SERVICE_APP = create_app(settings.Settings(), "")
OPERATIONS = [route for route in SERVICE_APP.routes if isinstance(route, OperationRoute)]

Make = Callable[[int], Any]


class Row(NamedTuple):
    """`act` on inputs of each size. `expressions` are the modules whose regular expressions it runs, one entry each."""

    name: str
    act: Callable[[Any], object]
    inputs: dict[str, Make]
    expressions: tuple[str, ...] = ()


def repeat(unit: str, before: str = "", after: str = "") -> Make:
    return lambda size: before + unit * (size // len(unit)) + after


def repeat_bytes(unit: str, before: str = "", after: str = "") -> Make:
    return lambda size: repeat(unit, before, after)(size).encode()


def numbered(form: str, before: str, after: str) -> Make:
    """Different texts of one form, with commas between."""
    return lambda size: (
        before + ",".join(form.format(number) for number in range(size // len(form.format(9999)))) + after
    ).encode()


def read_body(name: str) -> Callable[[bytes], object]:
    """Reads a body of this operation, and writes the response to a refused one."""
    [body] = [operation._body for operation in OPERATIONS if operation.name == name]
    assert body is not None

    def read(raw: bytes) -> object:
        try:
            return body.read(raw)
        except DeferdError as error:
            return problem_details.response(error)

    return read


def checked_value(raw: bytes) -> object:
    try:
        return request_body._checked(raw, ())
    except DeferdError as error:
        return error


def is_deeper(raw: bytes) -> bool:
    return json_values.is_deeper(from_json(raw), 100)


def decoded_window(form: str) -> Callable[[str], object]:
    window = body_decoding._window
    return lambda text: body_decoding.decoded(
        lambda raw, _key: window(raw), form.format(json.dumps(text)).encode(), NO_KEY_BOUNDS
    )


def validated(kind: Any) -> Callable[[Any], object]:
    adapter = TypeAdapter(kind)

    def validate(value: Any) -> object:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            return error

    return validate


def end_with(field: str) -> Callable[[str], object]:
    validate = validated(ends.OnEnd)
    return lambda text: validate({"topic": "t", field: text})


NAMES = {
    "letters": repeat("a"),
    "letters, then a sign": repeat("a", after="!"),
    "dots": repeat("a."),
    "commas": repeat("a,"),
    "topics": repeat("a" * 128 + ",", after="!"),
    "digits": repeat("1"),
    "line ends": repeat("\n"),
}
HEX = {"zeros": repeat("0", "00-"), "hyphens": repeat("00-"), "letters": repeat("a")}
RUN_IDS = NAMES | {"colons": repeat(":", after="Z"), "instants": repeat(":20261124T031500", after="Z")}
ERRORS = NAMES | {
    "quotes": repeat('"'),
    "single quotes": repeat("'a", after="a"),
    "hexadecimal digits": repeat("1a", after="g"),
    "numbers": repeat("1 "),
    "stars": repeat("*.", after="a"),
    "UUIDs": repeat("550e8400-e29b-"),
    "instants": repeat("2026-11-22T10:20"),
    "statuses": repeat("with ", after="502"),
    "types": repeat("Aa.", after=": 502"),
    "codes": repeat("exit code ", after="1"),
}
ERROR_LINES = "engine/inspection/normalized_errors.py"
JOB = '{"topic":"t","body":'
BODIES = {
    "unclosed string of escapes": repeat_bytes('\\"', '"'),
    "unclosed string": repeat_bytes("a", JOB + '"'),
    "unclosed lists": repeat_bytes("["),
    "unclosed objects": repeat_bytes('{"a":'),
    "unknown fields": numbered('"{0}":0', "{", "}"),
    "unknown objects": numbered('"{0}":{{}}', "{", "}"),
    "one long name": repeat_bytes("k", '{"', '":1}'),
    "empty lists": repeat_bytes("[],", JOB + "[", "0]}"),
    "deep lists": repeat_bytes("[" * 190 + "]" * 190 + ",", JOB + "[", "0]}"),
    "deep lists and an exponent": repeat_bytes("[" * 190 + "0" + "]" * 190 + ",", JOB + "[", "1e300]}"),
    "empty strings": repeat_bytes('"",', JOB + "[", "0]}"),
    "numbers": repeat_bytes("0,", JOB + "[", "0]}"),
    "exponents": repeat_bytes("1e99,", JOB + "[", "0]}"),
    "digits": repeat_bytes("9" * 199 + ",", JOB + "[", "0]}"),
    "last number too large": repeat_bytes("0,", JOB + "[", "1e400]}"),
    "fraction": repeat_bytes("9", JOB + "0.", "}"),
    "zeros and exponents in a string": repeat_bytes("e00", JOB + '"', '"}'),
    "digits in a string": repeat_bytes("0" * 199 + "e", JOB + '"', '"}'),
    "unicode escapes": repeat_bytes("\\u00e9", JOB + '"', '"}'),
    "spaces": repeat_bytes(" ", after="{}"),
    "spaces inside": repeat_bytes(" ", '{"topic":"t"', "}"),
    "names": numbered('"{0}":0', JOB + "{", "}}"),
    "long topic": repeat_bytes("a", '{"topic":"', '"}'),
    "list as topic": repeat_bytes("0,", '{"topic":[', "0]}"),
}
BATCHES = {
    "jobs": repeat_bytes("{},", '{"jobs":[', "{}]}"),
    "numbers": repeat_bytes("0,", '{"jobs":[', "0]}"),
    "unknown fields": lambda size: (
        b'{"jobs":[%b]}' % b",".join([numbered('"{0}":0', '{"topic":"t",', "}")(size // 1000)] * 1000)
    ),
}
FIELDS = {
    "digits": repeat("1", "body.jobs."),
    "jobs": repeat("jobs.1.", "body."),
    "places": repeat("body."),
}
PUSH_URLS = {
    "letters": repeat("a", "https://"),
    "dots": repeat("a.", "https://", "!"),
    "percents": repeat("%41", "https://a/"),
    "colons": repeat(":", "https://a"),
    "brackets": repeat("[", "https://"),
    "at signs": repeat("@", "https://a"),
    "slashes": repeat("/"),
}
PUSH_HEADERS: dict[str, Make] = {
    "letters": lambda size: {"url": "https://a", "headers": {"a" * size: "b"}},
    "signs": lambda size: {"url": "https://a", "headers": {"!" * size: "b"}},
}
PUSH_HEADER_TEXTS: dict[str, Make] = {
    "letters": lambda size: {"url": "https://a", "headers": {"a": "b" * size}},
    "spaces": lambda size: {"url": "https://a", "headers": {"a": "b" + " " * size}},
}


def allowed_host(text: str) -> object:
    try:
        return TargetPattern.parse(text)
    except ValueError as error:
        return error


ROWS = [
    Row("topic", validated(model.Topic), NAMES, ("contract/model.py", "api/routes/deliveries.py")),
    Row("topics of a pop", validated(deliveries.PopTopics), NAMES),
    Row("job id", validated(model.JobId), NAMES, ("contract/model.py", "api/routes/deliveries.py")),
    Row("name of a consumer", validated(model.ConsumerName), NAMES, ("contract/model.py",)),
    Row("beginning of an id", validated(topics.IdPrefix), NAMES, ("api/routes/topics.py",)),
    Row("ids", validated(topics.Ids), NAMES, ("api/routes/topics.py",)),
    Row("tag", validated(model.Tag), NAMES, ("contract/model.py",)),
    Row("name of a batch", validated(model.BatchName), NAMES, ("contract/model.py",)),
    Row("batch of a put", validated(model.BatchOfPut), NAMES, ("contract/model.py",)),
    Row("group", validated(flow.Group), NAMES, ("contract/flow.py",)),
    Row(
        "name of a schedule",
        validated(schedule_models.ScheduleName),
        NAMES,
        (SCHEDULES,),
    ),
    Row("name of a relay", validated(relays.RelayName), NAMES, (RELAYS,)),
    Row("database of a relay", validated(relays.RelayDatabase), NAMES, (RELAYS,)),
    Row(
        "times of day",
        validated(schedule_models.TimesOfDay),
        NAMES,
        (SCHEDULES,),
    ),
    Row(
        "beginning of a name",
        validated(schedules_and_calendars.NamePrefix),
        NAMES,
        ("api/routes/schedules_and_calendars.py",),
    ),
    Row("window", validated(windows.WindowSpec), NAMES, ("contract/windows.py",) * 3),
    Row("calendar on the fast path", decoded_window("{}"), NAMES, ("api/body_decoding.py",)),
    Row("window on the fast path", decoded_window('{{"from":{}}}'), NAMES, ("contract/windows.py",)),
    Row("topic of a selection", validated(bulk_model.TopicSelector), NAMES, ("contract/bulk_model.py",)),
    Row("request id", validated(bulk_model.RequestId), NAMES, ("contract/bulk_model.py",)),
    Row("topic of an end", end_with("topic"), NAMES, ("contract/ends.py",)),
    Row(
        "id of an end",
        end_with("id"),
        NAMES | {"places": repeat("{id}", after="!"), "begun": repeat("{id")},
        ("contract/ends.py",),
    ),
    Row("text of a header", validated(model._HeaderText), NAMES, ("contract/model.py",)),
    Row("topic of a command", session.TOPIC.fullmatch, NAMES, ("api/resp/session.py",)),
    Row("receipt", Receipt.of, NAMES | HEX, ("engine/record.py",)),
    Row(
        "field of a command's error",
        lambda field: replies._PLACE.sub("", field),
        FIELDS,
        ("api/resp/replies.py",),
    ),
    Row("URL of a push", validated(push.Url), PUSH_URLS, ("contract/push_targets.py",)),
    Row("name of a push header", validated(push.SetPush), PUSH_HEADERS, ("contract/operations/push.py",)),
    Row("text of a push header", validated(push.SetPush), PUSH_HEADER_TEXTS, ("contract/operations/push.py",)),
    Row("host of --push-allow", allowed_host, NAMES, ("contract/push_targets.py",)),
    Row("topic of the store", consistency._TOPIC_NAME.fullmatch, NAMES, ("engine/consistency.py",)),
    Row("id of a run", partitions._RUN_ID.search, RUN_IDS, ("engine/partitions.py",)),
    Row("traceparent of a body", validated(model.Traceparent), HEX, ("contract/model.py",)),
    Row(
        "traceparent",
        incoming_request.TRACEPARENT.fullmatch,
        {"zeros": repeat_bytes("0")},
        ("api/incoming_request.py",),
    ),
    Row("topics of a look", validated(queries.TopicsFilter), NAMES, ("api/routes/queries.py",)),
    *(
        Row(f"value {number} of an error", partial(pattern.sub, "*"), ERRORS, (ERROR_LINES,))
        for number, pattern in enumerate(
            (normalized_errors._QUOTED, normalized_errors._VALUE, normalized_errors._JOINED)
        )
    ),
    *(
        Row(f"status {number} of an error", pattern.search, ERRORS, (ERROR_LINES,))
        for number, pattern in enumerate(
            (
                *(
                    normalized_errors._STATUS,
                    normalized_errors._STATUS_WORDS,
                    normalized_errors._TELLING,
                    normalized_errors._TYPE,
                ),
                *(normalized_errors._CODE, normalized_errors._CODE_WORDS, normalized_errors._NOT_IN_EACH),
            )
        )
    ),
    Row("error of a dead job", normalized_errors.normalized_line.__wrapped__, ERRORS),
    Row("durability", validated(model.Durability), {"digits": repeat("1", "replicated:")}, ("contract/model.py",)),
    Row(
        "instant",
        validated(model.Instant),
        {"fraction": repeat("1", "2030-01-31T09:30:00.", "Z")},
        ("contract/timestamps.py",),
    ),
    Row(
        "content type",
        request_body._JSON_TYPE.fullmatch,
        {
            "spaces": repeat_bytes(" "),
            "suffixes": repeat_bytes("json+", "application/"),
            "plus signs": repeat_bytes("+", "application/"),
            "spaces behind": repeat_bytes(" ", "application/json", "x"),
        },
        ("api/request_body.py",),
    ),
    Row(
        "host",
        heads.is_host,
        {
            "letters": repeat_bytes("a", after="\0"),
            "brackets": repeat_bytes("["),
            "colons": repeat_bytes(":", "["),
            "port": repeat_bytes("1", "a:", "x"),
            "spaces": repeat_bytes(" ", "a", "x"),
        },
        ("server/http/heads.py",),
    ),
    Row(
        "value of a response header",
        asgi_call._has_control_character,
        {"letters": repeat_bytes("a"), "tabs": repeat_bytes("\t")},
        ("server/http/asgi_call.py",),
    ),
    *(
        Row(f"path of {operation.name}", operation.path_regex.match, {"steps": repeat("a/", "/jobs/")})
        for operation in OPERATIONS
    ),
    Row(
        "first line of a direct path",
        DirectPath(SERVICE_APP)._match_line,
        {
            "letters": repeat("a", "POST /jobs/"),
            "steps": repeat("/a", "DELETE /jobs"),
            "ids": repeat("a" * 255 + "/", "DELETE /jobs/t/", " HTTP/1.1"),
            "query": repeat("a=b&", "GET /topics/t/pop?", " HTTP/1.1"),
            "refused query": repeat("a?", "POST /topics/t/pop?", " HTTP/1.0"),
            "spaces": repeat(" ", "POST /jobs"),
        },
        ("server/http/direct_path.py",),
    ),
    Row(
        "body of a put on its direct path", lambda raw: body_decoding.decode_put(raw, NO_BOUNDS, NO_KEY_BOUNDS), BODIES
    ),
    Row("body of a finish", lambda raw: body_decoding.decode_finish(raw, NO_KEY_BOUNDS, "a"), BODIES),
    Row("body of a release", lambda raw: body_decoding.decode_release(raw, NO_KEY_BOUNDS, "a"), BODIES),
    Row("body of a put", read_body("put_job"), BODIES),
    Row("body of a batch", read_body("put_jobs"), BATCHES),
    *(
        Row(f"text {number} of a batch", pattern.fullmatch, NAMES | HEX, ("api/body_decoding.py",))
        for number, pattern in enumerate(
            (
                body_decoding._ID,
                body_decoding._TOPIC,
                body_decoding._GROUP,
                body_decoding._BATCH,
                body_decoding._TRACEPARENT,
                body_decoding._TAG,
                body_decoding._HEADER_TEXT,
            )
        )
    ),
    Row(
        "ids of a batch",
        body_decoding._IDS.fullmatch,
        NAMES | HEX | {"ids": repeat("order-1042\n", after="!"), "short ids": repeat("a\n", after="-")},
        ("api/body_decoding.py",),
    ),
    Row(
        "attempt of a receipt",
        body_decoding._DOT_AND_ATTEMPT.fullmatch,
        NAMES | HEX | {"digits": repeat("1", "."), "dots": repeat(".1", after="0")},
        ("api/body_decoding.py",),
    ),
    Row("body of a batch of finishes", read_body("finish_jobs"), BATCHES),
    Row("body of a call on many jobs", read_body("cancel_selected_jobs"), BODIES),
    *(
        Row(
            "number in a query",
            form,
            {"digits": repeat("1", after="-"), "exponent": repeat("1", "1e", "x"), "zeros": repeat("0", "0.", "_")},
            ("contract/json_values.py",),
        )
        for form in (json_values.is_number, json_values.is_whole_number)
    ),
    Row("depth of a body", is_deeper, {name: BODIES[name] for name in ("empty lists", "deep lists", "names")}),
    Row(
        "a large value",
        checked_value,
        {name: BODIES[name] for name in ("empty lists", "deep lists", "deep lists and an exponent")}
        | {name: BODIES[name] for name in ("exponents", "digits", "fraction", "zeros and exponents in a string")},
        ("api/request_body.py",),
    ),
    Row(
        "escapes of a large value",
        request_body._HALF_OF_A_PAIR.search,
        {
            "first halves": repeat_bytes("\\ud83d"),
            "pairs": repeat_bytes("\\ud83d\\ude00"),
            "others": repeat_bytes("\\ud7ff"),
            "begun": repeat_bytes("\\u"),
        },
        ("api/request_body.py",),
    ),
    # What the operator, the store, the client's own program or the engine itself has written:
    Row("name in a path", operation_rows._is_plain, NAMES, ("contract/operations/operation.py",)),
    Row(
        "path of an operation",
        operation_rows._template_of.__wrapped__,
        {"begun": repeat("{a"), "values": repeat("/{a}")},
        ("contract/operations/operation.py",),
    ),
    Row("name of a key", api_keys._NAME.fullmatch, NAMES, ("api/auth/api_keys.py",)),
    Row("hash of a key", api_keys._HASH.fullmatch, {"digits": repeat("0", "sha256:")}, ("api/auth/api_keys.py",)),
    Row("topics of a key", api_keys._PATTERN.fullmatch, NAMES | {"stars": repeat("*")}, ("api/auth/api_keys.py",)),
    Row(
        "table of a keys file", key_source._HEADER.fullmatch, {"spaces": repeat(" ", "[[")}, ("api/auth/key_source.py",)
    ),
    Row("allowed host", settings._HOST_NAME.fullmatch, NAMES | {"stars": repeat("*.")}, ("settings.py",)),
    Row("error of TOML", api_keys._POSITION.search, {"position": repeat("at line 1")}, ("api/auth/api_keys.py",)),
    Row(
        "instant in a finding",
        consistency._EPOCH_MS.findall,
        {"digits": repeat("1")},
        ("engine/consistency.py",),
    ),
    Row(
        "error of the store",
        scripts._FIRST_WORD.search,
        {"letters": repeat("A", ": -", "_"), "words": repeat(": -A_")},
        ("engine/scripts.py",),
    ),
    Row(
        "name of a server", server_info._OTHER_EXECUTABLES.search, {"letters": repeat("key")}, ("store/server_info.py",)
    ),
    *(
        Row(f"right {number}", right.search, {"words": repeat("no permissions to ")}, ("store/preflight.py",))
        for number, right in enumerate((preflight._COMMAND_RIGHT, preflight._KEY_RIGHT, preflight._CHANNEL_RIGHT))
    ),
    Row(
        "log line of the store",
        valkey_process._LOG_PREFIX.match,
        {"digits": repeat("1"), "times": repeat("1:", "1:M 1 Nov 1 ")},
        ("store/valkey_process.py",),
    ),
]
BOUNDED_BEFORE = (
    "settings.py",
    "api/direct/pop.py",
    "engine/topics.py",
    "store/backup.py",
    "store/backup_contents.py",
    "engine/scripts.py",
    "store/server_info.py",
    "store/shard_guard.py",
    *("contract/durations.py", "contract/durations.py"),
)
"""Where a regular expression reads a short text: the name of the environment, a query of at most 200 characters, a part
of a cursor (limits.CURSOR_MAX), the name of a backup's file and its first bytes, an error of the system, the version of
the store, the key that only an operator writes, a duration of at most 100 characters."""


def time_s(act: Callable[[Any], object], value: Any) -> float:
    began_s = time.thread_time()
    act(value)
    return max(LEAST_S, time.thread_time() - began_s)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_work_grows_linearly_with_the_size_of_the_input(row: Row) -> None:
    for name, make in row.inputs.items():
        small = make(SMALLEST)
        least_s = min(time_s(row.act, small) for _ in range(RUNS))
        for size in LARGER:
            value = make(size)
            most_s = min(least_s * FACTOR_OVER_LINEAR * size / SMALLEST, MOST_S)
            runs_s = [time_s(row.act, value)]
            while runs_s[-1] >= most_s:
                is_noise = len(runs_s) < RUNS and runs_s[-1] < 2 * most_s
                assert is_noise, f"{name}: {runs_s} s for {size} bytes, {least_s} s for {SMALLEST}"
                runs_s.append(time_s(row.act, value))


def regular_expressions(path: Path) -> int:
    """How many there are in a source: calls of `re` and patterns that are declared to pydantic."""
    number = 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                number += function.value.id == "re" and function.attr != "escape"
            number += any(keyword.arg in ("pattern", "regex") for keyword in node.keywords)
    return number


def test_every_regular_expression_of_the_service_is_in_the_table() -> None:
    found = Counter[str]()
    for part in SERVICE:
        for path in [ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*.py"):
            found[path.relative_to(ROOT).as_posix()] = regular_expressions(path)
    listed = Counter(module for row in ROWS for module in row.expressions) + Counter(BOUNDED_BEFORE)
    assert +found == listed
