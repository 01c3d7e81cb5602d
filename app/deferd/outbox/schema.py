"""The SQL of the outbox, made from the contract: the fields of a put are parameters of `deferd.put`, with their bounds.

`schema.sql` has everything that does not depend on the fields. The checks of the fields are written here from the JSON
schema of `PutJob`; what that schema can't say, such as that tags must differ, is in `_MORE`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deferd.contract import limits
from deferd.contract.bulk_model import CancelSelected
from deferd.contract.model import CancelItem, ChangeJob, PutJob
from deferd.contract.pattern_meanings import must_match

VERSION: Final = 1
_SCHEMA_LOCK: Final = int.from_bytes(b"schema", "big")
"""Key of the advisory lock under which the schema is made."""
SLEEP_LOCK: Final = int.from_bytes(b"sleep", "big")
"""Key of the advisory lock that a relay holds while it sleeps: commits then notify it."""
COMMIT_LOCK: Final = int.from_bytes(b"commit", "big")
"""Key of the advisory lock that commits hold, shared, if they can't hold the SLEEP_LOCK so. A relay sees by both which
commits are under way.
"""
_VERBS: Final = ("put", "reschedule", "cancel", "cancel_tag")

Schema = Mapping[str, Any]
_PUT: Final[Schema] = PutJob.model_json_schema()
_CHANGE: Final[Schema] = ChangeJob.model_json_schema()
_CANCEL: Final[Schema] = CancelItem.model_json_schema()
_DEFINITIONS: Final[Mapping[str, Schema]] = _PUT["$defs"]
_OWN: Final = ("topic", "body", "id", "delay", "run_at")
"""The fields that are parameters with a meaning of their own; all others may be in `fields`, too."""
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    name: schema for name, schema in _PUT["properties"].items() if name not in _OWN and name != "max_items"
}
_OPTIONS["on_conflict"] = _OPTIONS["on_conflict"] | {"enum": ["keep", "replace", "reject"]}
"""A row may be sent twice, so appends, which alone have `max_items`, are not for the outbox."""
_MORE: Final = {
    "tags": "checked := deferd.check_different({path}, {value}, 'a tag');",
    "on": "checked := deferd.check_different({path}, {value}, 'an outcome');",
    "days": "checked := deferd.check_different({path}, {value}, 'a value');",
    "headers": (
        f"checked := deferd.check_headers({{path}}, {{value}}, {limits.HEADERS_OF_JOB_MAX},"
        f" {limits.HEADERS_OF_JOB_BYTES});"
    ),
}
"""What the JSON schema of a list or an object can't say, by the name of the field."""


NO_OUTBOX: Final = "the database has no outbox: make it by `deferd outbox init`"


def version_problem(version: int | None) -> str | None:
    """Why an outbox of this version can't be used; None if it can."""
    if version is None:
        return NO_OUTBOX
    if version > VERSION:
        return f"the outbox of the database has version {version}, and this deferd knows {VERSION}: upgrade deferd"
    return None


def schema_sql() -> str:
    """The SQL that makes or upgrades the schema `deferd`; it is to run in one transaction."""
    changes = [name for name in _CHANGE["properties"] if name not in _OWN]
    put = [
        *("topic text", "body jsonb default null", "id text default null"),
        *("delay interval default null", "run_at timestamptz default null"),
        *(f'"{name}" {_sql_type(schema)} default null' for name, schema in _OPTIONS.items()),
        "fields jsonb default null",
    ]
    reschedule = [
        *("topic text", "id text", "delay interval default null", "run_at timestamptz default null"),
        "body jsonb default null",
        *(f'"{name}" {_sql_type(_OPTIONS[name])} default null' for name in changes),
        "fields jsonb default null",
    ]
    of_cancel = {name: schema for name, schema in _CANCEL["properties"].items() if name != "id"}
    cancel = [
        *("topic text", "id text"),
        *(f"{name} text default {_quoted(schema['default'])}" for name, schema in of_cancel.items()),
    ]
    if_reserved = CancelSelected.model_json_schema()["properties"]["if_reserved"]
    parts = {
        "version": str(VERSION),
        "schema_lock": str(_SCHEMA_LOCK),
        "sleep_lock": str(SLEEP_LOCK),
        "commit_lock": str(COMMIT_LOCK),
        "header_text": _quoted(limits.HEADER_TEXT_PATTERN),
        "check_topic": f"    checked := deferd.check_name('topic', topic, {_shape(limits.TOPIC_PATTERN)});",
        "check_id": f"    checked := deferd.check_name('id', id, {_shape(limits.ID_PATTERN)});",
        "depth": str(limits.VALUE_DEPTH_MAX),
        "body_bytes": str(limits.BODY_MAX_BYTES),
        "float_max": repr(sys.float_info.max),
        "delay_max": str(limits.DELAY_MAX_S),
        "checks_of_objects": "\n\n".join(_function(name, schema) for name, schema in _DEFINITIONS.items()),
        "checks_of_options": "\n".join(
            line
            for name, schema in _OPTIONS.items()
            for line in (f"    when '{name}' then", *_indented(_check_nullable(schema, "path", "value", name), 2))
        ),
        "put_parameters": _listed(put),
        "put_options": "\n".join(_collected(_OPTIONS)),
        "reschedule_parameters": _listed(reschedule),
        "reschedule_options": "\n".join(_collected({name: _OPTIONS[name] for name in changes})),
        "reschedule_names": _array(changes),
        "cancel_parameters": _listed(cancel),
        "cancel_options": "\n".join(
            line
            for name, schema in of_cancel.items()
            for line in (
                f"    options := options || jsonb_build_object('{name}', {name});",
                *_indented(_check(schema, f"'{name}'", f"options -> '{name}'", name)),
            )
        ),
        "cancel_tag_checks": "\n".join(
            _indented(
                [
                    *_check({"type": "string", "pattern": limits.TAG_PATTERN}, "'tag'", "options -> 'tag'", "tag"),
                    *_check(if_reserved, "'if_reserved'", "options -> 'if_reserved'", "if_reserved"),
                ]
            )
        ),
        "signatures": ", ".join(
            f"('{verb}', {_quoted(_identity(parameters))})"
            for verb, parameters in (("put", put), ("reschedule", reschedule), ("cancel", cancel))
        ),
        "verbs": ", ".join(map(_quoted, _VERBS)),
    }
    template = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    return re.sub(r"\{([a-z_]+)\}", lambda found: parts[found[1]], template)


def _sql_type(schema: Schema) -> str:
    """The type of the parameter for a field."""
    schema = _without_null(schema)
    match schema.get("type"):
        case "number":  # all numbers of a put are seconds
            return "interval"
        case "integer":
            return "integer"
        case "string":
            return "text"
        case "array":
            return "text[]"
    return "jsonb"


def _collected(options: Mapping[str, Schema]) -> Iterator[str]:
    """Statements that check the parameters that were given, and add them to the object `options`.

    Each expression costs a transaction about a microsecond: most calls need only the first one here.
    """
    yield f"    if not (({', '.join(map(_name, options))}) is null) then -- one of them is given"
    for name, schema in options.items():
        value = _name(name)
        if _sql_type(schema) == "interval":
            value = f"trim_scale(extract(epoch from {value}))"
        yield f"        if {_name(name)} is not null then"
        yield f"            value := to_jsonb({value});"
        yield from _indented(_check(_without_null(schema), f"'{name}'", "value", name), 3)
        yield f"            options := options || jsonb_build_object('{name}', value);"
        yield "        end if;"
    yield "    end if;"


def _function(name: str, schema: Schema) -> str:
    """The function that checks an object of the contract, such as a window."""
    lines = [
        f"create or replace function deferd.check_{_snake(name)}(path text, value jsonb) returns boolean",
        "language plpgsql as $body$",
        "declare",
        "    checked boolean;",
        "    item record;",
        "begin",
        *_indented(_check(schema, "path", "value", name)),
        "    return true;",
        "end",
        "$body$;",
    ]
    return "\n".join(lines)


def _check(schema: Schema, path: str, value: str, name: str) -> list[str]:
    """Statements that refuse `value` where the schema does. `value` and `path`, its name, are SQL expressions."""
    lines: list[str]
    match schema:
        case {"$ref": str(reference)}:
            return [f"checked := deferd.check_{_snake(reference.rpartition('/')[2])}({path}, {value});"]
        case {"discriminator": {"propertyName": key, "mapping": mapping}}:
            return _check_kind(key, mapping, path, value, name)
        case {"oneOf": [objects, *others]}:
            lines = [f"case jsonb_typeof({value})"]
            for other in others:
                lines += [f"when '{other['type']}' then", *_indented(_check(other, path, value, name))]
            return [*lines, "else", *_indented(_check(objects, path, value, name)), "end case;"]
        case {"type": "array", "items": items, "maxItems": most}:
            least = schema.get("minItems", 0)
            lines = [f"checked := deferd.check_list({path}, {value}, {least}, {most});"]
            found = f"select one.value, one.number - 1 as name from jsonb_array_elements({value})"
            lines += _each(f"{found} with ordinality as one (value, number)", items, path, name)
        case {"type": "object", "additionalProperties": {} as values}:
            lines = [f"checked := deferd.check_type({path}, {value}, 'object', 'a JSON object');"]
            lines += _each(f"select one.value, one.key as name from jsonb_each({value}) as one", values, path, name)
        case {"type": "object", "properties": properties}:
            required = _array(schema.get("required", ()))
            lines = [f"checked := deferd.check_object({path}, {value}, {_array(properties)}, {required});"]
            for inner, of_inner in properties.items():
                check = _check_nullable(of_inner, f"{path} || '.{inner}'", f"{value} -> '{inner}'", inner)
                lines += [f"if {value} ? '{inner}' then", *_indented(check), "end if;"]
        case _:
            return [_check_single(schema, path, value, name)]
    return [*lines, *([_MORE[name].format(path=path, value=value)] if name in _MORE else [])]


def _check_single(schema: Schema, path: str, value: str, name: str) -> str:
    """The check of a number or a text."""
    match schema:
        case {"enum": choices}:
            wrong = _quoted(f"must be {_either(choices)}")
            return f"checked := deferd.check_choice({path}, {value}, {_quoted(json.dumps(choices))}, {wrong});"
        case {"type": "number"}:
            unit = "" if name == "jitter" else " seconds"
            return f"checked := deferd.check_number({path}, {value}, {_bounds(schema)}, '{unit}');"
        case {"type": "boolean"}:
            return f"checked := deferd.check_type({path}, {value}, 'boolean', 'true or false');"
        case {"type": "integer"}:
            return f"checked := deferd.check_whole({path}, {value}, {_bounds(schema)});"
        case {"type": "string", "pattern": str(pattern)}:
            return f"checked := deferd.check_text({path}, {value}, {_shape(pattern)});"
        case {"type": "string", "format": "date"}:
            return f"checked := deferd.check_date({path}, {value});"
        case {"type": "string", "minLength": least, "maxLength": most}:
            return f"checked := deferd.check_length({path}, {value}, {least}, {most});"
    raise AssertionError(f"{name} has a schema for which there is no check: {schema}")


def _check_nullable(schema: Schema, path: str, value: str, name: str) -> list[str]:
    lines = _check(_without_null(schema), path, value, name)
    if schema is _without_null(schema):
        return lines
    return [f"if jsonb_typeof({value}) <> 'null' then", *_indented(lines), "end if;"]


def _check_kind(key: str, mapping: Mapping[str, str], path: str, value: str, name: str) -> list[str]:
    """The check of an object, of which the field `key` says what it is."""
    lines = [f"checked := deferd.check_type({path}, {value}, 'object', 'a JSON object');", f"case {value} ->> '{key}'"]
    for kind, reference in mapping.items():
        lines += [f"when '{kind}' then", *_indented(_check({"$ref": reference}, path, value, name))]
    wrong = _quoted(f"must have a `{key}` that is one of {', '.join(mapping)}")
    return [*lines, "else", f"    perform deferd.refuse({path}, {wrong}, ({value})::text);", "end case;"]


def _each(found: str, items: Schema, path: str, name: str) -> list[str]:
    """The check of all values of a list or an object: `found` selects them with their names."""
    check = _check(items, f"{path} || '.' || item.name", "item.value", name)
    return [f"for item in {found} loop", *_indented(check), "end loop;"]


def _without_null(schema: Schema) -> Schema:
    """The schema of the values that are not null."""
    match schema:
        case {"anyOf": [Mapping() as inner, {"type": "null"}]}:
            return inner
    return schema


def _bounds(schema: Schema) -> str:
    return f"{schema['minimum']}, {schema['maximum']}"


def _identity(parameters: Iterable[str]) -> str:
    """The parameters as `pg_get_function_identity_arguments` writes them."""
    bare = (parameter.partition(" default ")[0] for parameter in parameters)
    quoted = {f'"{word}"' for word in ("window", "group")}  # of the names only these are reserved words
    return ", ".join(one if one.split()[0] in quoted else one.replace('"', "") for one in bare).replace(
        "timestamptz", "timestamp with time zone"
    )


def _shape(pattern: str) -> str:
    """The arguments of `deferd.check_text` for a pattern, some of which end with a bound."""
    bound = re.search(r"\{0,(\d+)\}\$$", pattern)
    shape = pattern if bound is None else f"{pattern[: bound.start()]}*$"
    most = "null" if bound is None else str(int(bound[1]) + 1)
    return f"{_quoted(shape)}, {most}, {_quoted(must_match(pattern))}"


def _either(choices: Sequence[str]) -> str:
    """As pydantic lists them."""
    *most, last = (f"'{choice}'" for choice in choices)
    return f"{', '.join(most)} or {last}" if most else last


def _name(parameter: str) -> str:
    """Quoted, because `window` and `group` are words of SQL."""
    return f'"{parameter}"'


def _listed(parameters: Iterable[str]) -> str:
    return "\n" + ",\n".join(_indented(parameters)) + "\n"


def _indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line for line in lines]


def _array(texts: Iterable[str]) -> str:
    return f"array[{', '.join(map(_quoted, texts))}]::text[]"


def _quoted(text: str) -> str:
    """A literal, for any setting of standard_conforming_strings."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'" if "\\" not in text else "E'" + escaped.replace("\\", "\\\\") + "'"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
