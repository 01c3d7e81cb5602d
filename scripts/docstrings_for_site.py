"""For the Python reference of the site: docstrings as Markdown, and the fields of each type as a list.

An extension of griffe, which mkdocs.yml names. Responses and models have texts for their fields in annotations and in
the tables of the contract, so their classes are imported.
"""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import griffe
import msgspec
from pydantic import BaseModel

_CODE = re.compile(r"::\n\n((?:(?: {4}.*)?\n)*(?: {4}.*))")
_NOT_FIELDS = frozenset({"backoff_terms", "grows", "model_config", "schema_examples", "schema_name"})
_SHOWN_BASES = frozenset({"Job"})
_UNSAID = "&#8203;"  # nothing is visible; the parser takes no empty text


class Docstrings(griffe.Extension):
    """Makes what stands below `::` a code block, and the fields of a type a list in its docstring."""

    def on_object(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _CODE.sub(_fenced, obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_kwargs: Any) -> None:
        """Called when all of the package was read."""
        classes = list(_classes(pkg))
        fields = {cls.path: _fields(cls) for cls in classes}  # of all, before the inherited ones are gone
        for cls in classes:
            if fields[cls.path]:
                cls.docstring = griffe.Docstring(
                    f"{cls.docstring.value if cls.docstring else ''}\n\nAttributes:\n{fields[cls.path]}", parent=cls
                )
                cls.bases = [base for base in cls.bases if str(base) in _SHOWN_BASES]
                for name in [name for name, member in cls.members.items() if member.is_attribute]:
                    del cls.members[name]


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from _classes(member)
        elif isinstance(member, griffe.Class) and not member.name.startswith("_"):
            yield member


def _fenced(block: re.Match[str]) -> str:
    language = "text" if "──" in block[1] else "python"
    return f"\n\n```{language}\n{textwrap.dedent(block[1])}\n```"


def _fields(cls: griffe.Class) -> str:
    """The fields of a type as the lines of a docstring: of a struct its own, of others the inherited ones too."""
    texts: dict[str, str] = {}
    members = cls.all_members
    if cls.path.startswith("deferd.contract."):
        kind = getattr(importlib.import_module(cls.module.path), cls.name, None)
        if not isinstance(kind, type) or not issubclass(kind, BaseModel | msgspec.Struct):
            return ""
        texts = _texts(kind)
        members = members if issubclass(kind, BaseModel) else cls.members
    elif not any(str(base) == "TypedDict" for one in (cls, *cls.mro()) for base in one.bases):
        return ""
    lines = []
    for name, member in members.items():
        text = texts.get(name) or (member.docstring.value if member.docstring else "")
        if member.is_attribute and not name.startswith("_") and name not in _NOT_FIELDS:
            text = textwrap.indent(text or _UNSAID, " " * 8).strip()
            lines.append(f"    {name} ({_type(member.annotation)}): {text}")
    return "\n".join(lines)


def _type(annotation: Any) -> str:
    """The type itself, without what `Annotated` adds to it."""
    if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_name == "Annotated":
        annotation = annotation.slice.elements[0]
    return str(annotation)


def _texts(kind: type[BaseModel | msgspec.Struct]) -> dict[str, str]:
    """The fields of a response or a model that have texts there."""
    if issubclass(kind, BaseModel):
        shown = kind.model_json_schema(by_alias=False)["properties"]
        return {name: _description([field, *field.get("anyOf", ())]) for name, field in shown.items()}
    hints = get_type_hints(kind, include_extras=True)
    return {name: _note(get_args(hints[name])) for name in kind.__struct_fields__}


def _note(parts: tuple[Any, ...]) -> str:
    texts = [part if isinstance(part, str) else getattr(part, "description", None) for part in parts[1:]]
    return next((text for text in texts if isinstance(text, str)), "")


def _description(schemas: list[dict[str, Any]]) -> str:
    return next((schema["description"] for schema in schemas if "description" in schema), "")
