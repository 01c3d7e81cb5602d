"""The functions of the outbox accept what the API accepts, and name field, bound and value as it does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import given
from pydantic import ValidationError

from deferd.api.validation_errors import field_errors
from deferd.contract import limits
from deferd.contract.model import PutJob
from deferd.contract.pattern_meanings import must_match
from deferd.outbox.schema import schema_sql
from tests.drawn_input import drawn
from tests.postgresql import PostgresServer
from tests.random_draws import by_number, json_scalar

_SCHEMA = PutJob.model_json_schema()
_OPTIONS = {
    name: schema
    for name, schema in _SCHEMA["properties"].items()
    if name not in {"topic", "id", "body", "delay", "run_at", "max_items"}
}
_NAMES = (
    "a",
    "Z9._:-",
    "a" * 64,
    "a" * 65,
    "a" * 128,
    "a" * 129,
    "a" * 255,
    "a" * 256,
    "",
    ".a",
    "a\n",
    "a b",
    "ä",
    "a*",
)
_TEXTS = (
    *("memory", "fsync", "replicated:1", "replicated:9", "replicated:0", "fsync\n", "é\x85", "\x7f", "\t", "\u2028"),
    *(
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
    ),
    *("09:00", "23:59", "24:00", "24:01", "9:00", "2026-12-24", "2026-02-30", "0000-01-01", "2026-1-1", "20261224"),
    *("é" * 2047, "x" * 4095),
    *("{id}", "{topic}-{id}.{outcome}", "{other}", "a{id", "finished", "cancelled"),
    *("UTC", "Europe/Berlin", "x" * 64, "x" * 65, "keep", "dead"),
)
_ALL_TEXTS = _NAMES + _TEXTS
_MOST_IN_A_LIST = 20
_INT_MAX = 2**31
_OTHER_TEXTS = ("on_conflict", "max_wait", "if_reserved", "max_attempts", "priority")
"""Of fields: the outbox has no appends, and to SQL 1e22 is a whole number that is too large."""


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    url = postgres.database(schema_sql())
    with psycopg.connect(url) as connection:
        yield connection
    postgres.drop(url)


@pytest.fixture
def database(connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A connection whose transaction is not committed."""
    with connection.transaction(force_rollback=True):
        yield connection


def near(schema: Mapping[str, Any], chance: Random) -> Any:
    """A value that the schema allows, or almost; now and then one of another kind."""
    if not chance.randrange(15):
        return json_scalar(chance)
    match schema:
        case {"$ref": reference}:
            return near(_SCHEMA["$defs"][reference.rpartition("/")[2]], chance)
        case {"anyOf": kinds} | {"oneOf": kinds}:
            return near(chance.choice(kinds), chance)
        case {"const": value}:
            return value
        case {"enum": values}:
            return chance.choice([*values, *values, "other"])
        case {"type": "null"}:
            return None
        case {"type": "number" | "integer" as kind, "minimum": low, "maximum": high}:
            whole = chance.choice([low, high, low - 1, high + 1, chance.randint(int(low), int(high))])
            return whole if kind == "integer" or chance.randrange(2) else chance.uniform(low - 0.1, high)
        case {"type": "boolean"}:
            return chance.choice([False, True])
        case {"type": "string"}:
            pattern = schema.get("pattern", r"....-..-.." if "format" in schema else ".*")
            fitting = [text for text in _ALL_TEXTS if re.search(pattern, text)]
            return chance.choice(fitting if chance.randrange(8) else _ALL_TEXTS)
        case {"type": "array", "items": items}:
            count = chance.choice([0, 1, 2, min(schema["maxItems"], _MOST_IN_A_LIST), schema["maxItems"] + 1])
            return [near(items, chance) for _ in range(count)]
        case {"type": "object", "additionalProperties": {} as values}:
            count = chance.choice([0, 1, 2, 16, 17])
            return {
                chance.choice(["", "\x01", f"n{at}"]) if at == 1 else f"n{at}": near(values, chance)
                for at in range(count)
            }
        case {"type": "object", "properties": properties}:
            needed = schema.get("required", ())
            found = {name: near(of, chance) for name, of in properties.items() if name in needed or chance.randrange(2)}
            return found if chance.randrange(10) else found | {"more": 1}
    raise AssertionError(schema)


def put(chance: Random) -> dict[str, Any]:
    """Arguments of a put, of which few or one are wrong."""
    names = chance.sample(sorted(_OPTIONS), chance.choice([0, 1, 1, 2, 3]))
    fields = {name: near(_OPTIONS[name], chance) for name in names}
    topic = chance.choice(_NAMES) if not chance.randrange(6) else "t"
    job_id = chance.choice([None, *_NAMES]) if not chance.randrange(3) else "i"
    return {"topic": topic, "id": job_id, **fields}


def parameter(name: str, value: Any) -> tuple[str, Any] | None:
    """The SQL type and the value of a parameter of `deferd.put`; None where only `fields` can carry this value."""
    schema = next((kind for kind in _OPTIONS[name].get("anyOf", ()) if kind != {"type": "null"}), _OPTIONS[name])
    match schema.get("type"), value:
        case "number", int() if abs(value) < _INT_MAX and type(value) is int:
            return "interval", timedelta(seconds=value)
        case "integer", int() if abs(value) < _INT_MAX and type(value) is int:
            return "integer", value
        case "string", str():
            return "text", value
        case "array", list() if all(isinstance(one, str) for one in value):
            return "text[]", value
        case None | "object", dict() | list() | str():
            return "jsonb", json.dumps(value)
    return None


def refused_by_sql(database: psycopg.Connection, job: Mapping[str, Any]) -> tuple[str, str] | None:
    """The path and the text of the error; None if the job is accepted. Its options are parameters where they can be."""
    options = {name: value for name, value in job.items() if name not in {"topic", "id"}}
    parameters = {name: found for name, value in options.items() if (found := parameter(name, value)) is not None}
    fields = {name: value for name, value in options.items() if name not in parameters}
    given = [f'"{name}" => %s::{kind}' for name, (kind, _) in parameters.items()]
    values = [value for _, value in parameters.values()]
    statement = ", ".join(["%s", "id => %s", "fields => %s::jsonb", *given])
    try:
        with database.transaction(force_rollback=True):
            database.execute(
                f"SELECT deferd.put({statement})",
                [job["topic"], job["id"], json.dumps(fields) if fields else None, *values],
            )
    except psycopg.errors.InvalidParameterValue as error:
        return str(error.diag.column_name), str(error.diag.message_primary)
    except (psycopg.errors.UntranslatableCharacter, psycopg.DataError):  # PostgreSQL has no character 0
        return "", ""
    return None


def refused_by_the_api(job: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the errors by their paths."""
    value = {"on_conflict": "keep", **job}
    try:
        PutJob.model_validate(value)
    except ValidationError as error:
        return {".".join(map(str, one.path[1:])): one.message for one in field_errors(error, "body", value)}
    return {}


@drawn(2000)
@given(job=by_number(put))
def test_sql_and_the_api_accept_the_same(database: psycopg.Connection, job: dict[str, Any]) -> None:
    by_api = refused_by_the_api(job)
    by_sql = refused_by_sql(database, job)
    if job.get("on_conflict") == "append":
        assert by_sql is not None
        return
    assert (by_sql is None) == (not by_api), (by_sql, by_api)
    if by_sql is not None and by_sql[0]:
        path, text = by_sql
        assert any(f"{one}.".startswith(f"{path}.") for one in by_api), (by_sql, by_api)
        problem = text.removeprefix(f"{path} ").partition(" (it is ")[0]
        is_of_length = problem.startswith("must have at")  # which the API looks at last
        if path in by_api and path not in _OTHER_TEXTS and not is_of_length:
            assert by_api[path].startswith(problem), (by_sql, by_api)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("null", "topic is required"),
        ("'a b'", f'topic {must_match(limits.TOPIC_PATTERN)} (it is "a b")'),
        ("'t', delay => '-1 s'", "delay must be at least 0 seconds (it is -00:00:01)"),
        ("'t', delay => '315576001 s'", "delay must be at most 315576000 seconds (it is 87660:00:01)"),
        ("'t', delay => '1 s', run_at => now()", "run_at and delay exclude each other: give one of them"),
        ("'t', run_at => 'infinity'", "run_at must be at most 315576000 seconds (10 years) ahead (it is infinity)"),
        ("'t', run_at => now() + interval '315576060 s'", "run_at must be at most 315576000 seconds (10 years) ahead"),
        ("'t', ttr => '0.0999 s'", "ttr must be at least 0.1 seconds (it is 0.0999)"),
        ("'t', ttr => '1 day 1 s'", "ttr must be at most 86400 seconds (it is 86401)"),
        ("'t', max_attempts => 0", "max_attempts must be at least 1 (it is 0)"),
        ("'t', priority => 10", "priority must be at most 9 (it is 10)"),
        ("'t', tags => array['a', null]", "tags.1 must be a string (it is null)"),
        ("'t', headers => '{\"a\": 1}'", "headers.a must be a string (it is 1)"),
        ("'t', \"group\" => ''", "group must match "),
        ('\'t\', "window" => \'{"from": "9"}\'', "window.from must match "),
        ('\'t\', on_end => \'{"topic": "t", "id": "{name}"}\'', "on_end.id must match "),
        (
            '\'t\', backoff => \'{"kind": "fixed", "seconds": -1}\'',
            "backoff.seconds must be at least 0 seconds (it is -1)",
        ),
        (
            "'t', id => 'i', on_conflict => 'keep', if_reserved => 'after', batch => 'b'",
            "batch must be left out with `append` and `after`",
        ),
        ("'t', on_conflict => 'append'", "on_conflict must not be append: the outbox may send a row twice"),
        (
            "'t', id => 'i', on_conflict => 'replace', delay => '2 s', max_wait => '1 s'",
            "max_wait must be at least the `delay`, 2 seconds (it is 1)",
        ),
        ("'t', fields => '{\"tt\": 1}'", "tt is not an option that `fields` takes"),
        ("'t', fields => '{\"delay\": 1}'", "delay is not an option that `fields` takes"),
        ("'t', fields => '[]'", "fields must be a JSON object (it is [])"),
        (f"'t', headers => '{{\"ä\": \"{'x' * 4095}\"}}'", "headers must have at most 4096 bytes"),
        (
            f"'t', to_jsonb(repeat('x', {64 * 1024 * 1024 - 1}))",
            "body must have at most 67108864 bytes as JSON, has 67108865",
        ),
        (f"'t', '{'[' * 191 + ']' * 191}'", "body is nested deeper than 190 levels"),
        (f"'t', '[{'9' * 309}]'", "body has a number beyond 1.8e308, the maximum"),
    ],
)
def test_an_error_of_a_put_names_field_bound_and_value(
    database: psycopg.Connection, arguments: str, error: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        database.execute(f"SELECT deferd.put({arguments})")

    assert str(refused.value.diag.message_primary).startswith(error)
    assert error.startswith(str(refused.value.diag.column_name))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("reschedule('t', null)", "id is required"),
        ("reschedule('t', 'i', delay => '-1 s')", "delay must be at least 0 seconds (it is -00:00:01)"),
        ("reschedule('t', 'i', priority => 10)", "priority must be at most 9 (it is 10)"),
        ("reschedule('t', 'i', fields => '{\"unique_for\": 1}')", "unique_for is not an option that `fields` takes"),
        ("cancel('t', 'a/b')", "id must match "),
        ("cancel('t', 'i', if_reserved => 'keep')", "if_reserved must be 'cancel' or 'refuse' (it is \"keep\")"),
        ("cancel('t', 'i', follow_up => null)", "follow_up must be 'cancel' or 'keep' (it is null)"),
        ("cancel_tag(null)", "tag must be a string (it is null)"),
        ("cancel_tag('a b')", "tag must match "),
        ("cancel_tag('a', if_reserved => 'keep')", "if_reserved must be 'cancel' or 'refuse' (it is \"keep\")"),
    ],
)
def test_an_error_of_another_call_does_too(database: psycopg.Connection, call: str, error: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        database.execute(f"SELECT deferd.{call}")

    assert str(refused.value.diag.message_primary).startswith(error)


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            "'t', delay => '0 s'",
            "'t', delay => '315576000 s'",
            "'t', run_at => '-infinity'",
            "'t', run_at => '0044-03-15 BC'",
        ),
        *("'t', ttr => '0.1 s'", "'t', ttl => '10 years'", "'t', null", "'t', fields => '{\"max_attempts\": null}'"),
        f"'t', headers => '{{\"ä\": \"{'x' * 4094}\"}}'",
        f"'t', '{'[' * 190 + ']' * 190}'",
    ],
)
def test_a_put_at_a_bound_is_accepted_by_both(database: psycopg.Connection, arguments: str) -> None:
    database.execute(f"SELECT deferd.put({arguments})")

    [(fields,)] = database.execute("SELECT fields FROM deferd.outbox").fetchall()
    assert PutJob.model_validate(fields).topic == "t"
    assert fields.get("run_at", "2026") >= "1970"
