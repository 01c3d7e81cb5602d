"""What of an OpenAPI document's changes breaks a client that was made for an earlier one.

A change is compatible only if it is known here as such: a new operation, an optional parameter or field of a request, a
field, header, status or enum value of a response, a looser bound of a request. Everything else that is not text for
people is reported, also what this does not know. Unknown fields are refused by the API, so a client cannot go on
sending a field that was removed; it ignores fields of responses, and has to expect new values and codes there. So what
is returned may also become longer or larger: bounds of responses are not compared.

Programs for this exist, of which `oasdiff`, in Go, is kept and knows most. But it lets optional fields of responses go,
only warns of removed parameters and fields of requests, and calls a new error code a break of each operation; besides,
it takes a minute to compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]
Node = Mapping[str, Any]

_TEXTS = {"description", "summary", "title", "example", "examples", "tags", "deprecated"}
_LOWER_BOUNDS = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER_BOUNDS = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
_SUBSCHEMAS = {"items", "additionalProperties", "propertyNames"}
_ALTERNATIVES = ("anyOf", "oneOf")
_OPEN_ENUM = "x-extensible-enum"
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
_COMPARED = {"type", "enum", "const", _OPEN_ENUM, "properties", "required", *_SUBSCHEMAS, *_ALTERNATIVES}


def incompatibilities(old: Document, new: Document) -> list[str]:
    """Each change that breaks a client of `old`: where it is, and what it is."""
    found = _Comparison(old, new).of_documents()
    return list(dict.fromkeys(found))


class _Comparison:
    def __init__(self, old: Document, new: Document) -> None:
        self._old = old
        self._new = new
        self._of_components: dict[tuple[str, str, bool], list[str]] = {}

    def of_documents(self) -> Iterator[str]:
        yield from _different("document", self._old, self._new, {"openapi", "info", "paths", "components", "tags"})
        old_schemes, new_schemes = (one.get("components", {}).get("securitySchemes") for one in (self._old, self._new))
        if old_schemes != new_schemes:
            yield "securitySchemes: changed"
        for path, old in self._old["paths"].items():
            new = self._new["paths"].get(path)
            if new is None:
                yield f"{path}: the path is gone"
                continue
            yield from _different(path, old, new, _METHODS)
            for method in sorted(_METHODS & old.keys()):
                at = f"{method.upper()} {path}"
                if method not in new:
                    yield f"{at}: the method is gone"
                else:
                    yield from self._of_operations(at, old[method], new[method])

    def _of_operations(self, at: str, old: Node, new: Node) -> Iterator[str]:
        yield from _different(at, old, new, {"parameters", "requestBody", "responses"})
        yield from self._of_parameters(at, old.get("parameters", ()), new.get("parameters", ()))
        old_body, new_body = old.get("requestBody"), new.get("requestBody")
        if old_body is not None and new_body is None:
            yield f"{at}: the request body is gone"
        elif new_body is not None:
            if new_body.get("required", False) and not (old_body or {}).get("required", False):
                yield f"{at}: the request body is required now"
            if old_body is not None:
                yield from self._of_contents(f"{at}, request", old_body, new_body, is_request=True)
        for status, response in old["responses"].items():
            if status not in new["responses"]:
                yield f"{at}: status {status} is gone"
            else:
                yield from self._of_responses(f"{at}, {status}", response, new["responses"][status])

    def _of_parameters(self, at: str, old: list[Node], new: list[Node]) -> Iterator[str]:
        before, after = ({(one["in"], one["name"]): one for one in parameters} for parameters in (old, new))
        for key, parameter in after.items():
            if parameter.get("required", False) and not before.get(key, {}).get("required", False):
                yield f"{at}: the {key[0]} parameter {key[1]} is required now"
        for key, parameter in before.items():
            where = f"{at}, {key[0]} parameter {key[1]}"
            if key not in after:
                yield f"{where}: it is gone"
                continue
            yield from _different(where, parameter, after[key], {"required", "schema"})
            yield from self._of_schemas(where, parameter["schema"], after[key]["schema"], is_request=True)

    def _of_responses(self, at: str, old: Node, new: Node) -> Iterator[str]:
        yield from _different(at, old, new, {"content", "headers"})
        for name, header in old.get("headers", {}).items():
            if name not in new.get("headers", {}):
                yield f"{at}: the header {name} is gone"
                continue
            other, where = new["headers"][name], f"{at}, header {name}"
            yield from _different(where, header, other, {"schema"})
            yield from self._of_schemas(where, header["schema"], other["schema"], is_request=False)
        yield from self._of_contents(at, old, new, is_request=False)

    def _of_contents(self, at: str, old: Node, new: Node, *, is_request: bool) -> Iterator[str]:
        for kind, content in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{at}: {kind} is gone"
                continue
            other, where = new["content"][kind], f"{at}, {kind}"
            yield from _different(where, content, other, {"schema"})
            yield from self._of_schemas(
                where, content.get("schema", {}), other.get("schema", {}), is_request=is_request
            )

    def _of_schemas(self, at: str, old: Any, new: Any, *, is_request: bool) -> list[str]:
        """Each alternative that was allowed must be so in a request, and no other may come in a response."""
        old, new = _schema(old), _schema(new)
        if _is_reference(old) and _is_reference(new):
            return self._of_references(old["$ref"], new["$ref"], is_request=is_request)
        befores, afters = list(_alternatives(self._old, old)), list(_alternatives(self._new, new))
        allowed = afters if is_request else befores
        found: list[str] = []
        for one in befores if is_request else afters:
            pairs = ((one, other) if is_request else (other, one) for other in allowed)
            nearest = min((list(self._of_alternatives(at, *pair, is_request=is_request)) for pair in pairs), key=len)
            found += nearest
        return found

    def _of_references(self, old: str, new: str, *, is_request: bool) -> list[str]:
        """As their schemas, reported at the component once, wherever it is used."""
        key = (old, new, is_request)
        if key not in self._of_components:
            self._of_components[key] = []  # it may contain itself
            at = f"{_name(old)} in {'requests' if is_request else 'responses'}"
            schemas = _resolved(self._old, old), _resolved(self._new, new)
            self._of_components[key] = self._of_schemas(at, *schemas, is_request=is_request)
        return self._of_components[key]

    def _of_alternatives(self, at: str, old: Node, new: Node, *, is_request: bool) -> Iterator[str]:
        if _is_reference(old) and _is_reference(new):
            yield from self._of_references(old["$ref"], new["$ref"], is_request=is_request)
            return
        old, new = _dereferenced(self._old, old), _dereferenced(self._new, new)
        bounds = _LOWER_BOUNDS | _UPPER_BOUNDS
        yield from _different(at, old, new, _COMPARED | bounds)
        if is_request:
            for bound in sorted(bounds & new.keys()):
                is_lower = bound in _LOWER_BOUNDS
                if bound not in old or (new[bound] > old[bound] if is_lower else new[bound] < old[bound]):
                    yield f"{at}: {bound} is {new[bound]}, and was {old.get(bound)}"
        narrow, wide = (old, new) if is_request else (new, old)
        if not _types(narrow) <= _types(wide):
            yield f"{at}: the type is {_type(new)}, and was {_type(old)}"
        yield from _of_values(at, old, new, is_request=is_request)
        yield from self._of_objects(at, old, new, is_request=is_request)
        for keyword in sorted(_SUBSCHEMAS & (old.keys() | new.keys())):
            where = f"{at}, {keyword}"
            yield from self._of_schemas(where, old.get(keyword, {}), new.get(keyword, {}), is_request=is_request)

    def _of_objects(self, at: str, old: Node, new: Node, *, is_request: bool) -> Iterator[str]:
        were, are = set(old.get("required", ())), set(new.get("required", ()))
        for name in sorted(are - were) if is_request else ():
            yield f"{at}: {name} is required now"
        for name in sorted(were - are) if not is_request else ():
            yield f"{at}: {name} may be absent now"
        before, after = old.get("properties", {}), new.get("properties", {})
        for name, schema in before.items():
            if name not in after:
                yield f"{at}: {name} is gone"
            else:
                yield from self._of_schemas(f"{at}, {name}", schema, after[name], is_request=is_request)


def _of_values(at: str, old: Node, new: Node, *, is_request: bool) -> Iterator[str]:
    """Values may come in both directions, and none may go."""
    were, are = _values(old), _values(new)
    if were is not None and are is not None:
        for value in were:
            if value not in are:
                yield f"{at}: the value {value!r} is gone"
    elif are is not None and is_request:
        yield f"{at}: only {are} are allowed now"
    elif were is not None and not is_request:
        yield f"{at}: other values than {were} may come now"


def _values(schema: Node) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum", schema.get(_OPEN_ENUM))


def _different(at: str, old: Node, new: Node, compared: set[str]) -> Iterator[str]:
    """What differs beside what is compared otherwise, and texts."""
    for key in sorted((old.keys() | new.keys()) - compared - _TEXTS):
        if old.get(key) != new.get(key):
            yield f"{at}: {key} is {new.get(key)}, and was {old.get(key)}"


def _schema(given: Any) -> Node:
    """A schema as a mapping; true allows everything, and false nothing."""
    if isinstance(given, bool):
        return {} if given else {"type": []}
    schema: Node = given
    return schema


def _is_reference(schema: Node) -> bool:
    """Whether it is what it refers to, and nothing besides."""
    return "$ref" in schema and schema.keys() <= {"$ref", *_TEXTS}


def _dereferenced(document: Document, schema: Node) -> Node:
    if "$ref" not in schema:
        return schema
    return {**_resolved(document, schema["$ref"]), **{key: schema[key] for key in schema.keys() - {"$ref"}}}


def _alternatives(document: Document, schema: Node) -> Iterator[Node]:
    """The schemas without alternatives that this one consists of."""
    whole = _dereferenced(document, schema)
    keyword = next((one for one in _ALTERNATIVES if one in whole), None)
    if keyword is None:
        yield schema
        return
    for one in whole[keyword]:
        yield from _alternatives(document, {**{key: whole[key] for key in whole.keys() - {keyword}}, **one})


def _type(schema: Node) -> Any:
    return schema.get("type", "anything")


def _types(schema: Node) -> frozenset[str]:
    given = schema.get("type", _TYPES)
    types = frozenset([given] if isinstance(given, str) else given)
    return types | {"integer"} if "number" in types else types


def _resolved(document: Document, reference: str) -> Node:
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return _schema(node)


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
