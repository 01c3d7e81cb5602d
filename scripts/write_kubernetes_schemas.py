"""Write the JSON schemas of Kubernetes by which tests check the manifests, into tests/unit/project.

The package that brings them has those of all kinds and versions, in 17,000 files that would take a third of the time in
which the environment of development is installed. So it is not part of that, and the schemas of the kinds in
docs/deployment/kubernetes/ are kept, without their descriptions. Make them again for another kind or version with::

    pip install --target build/schemas kubernetes-validate
    PYTHONPATH=build/schemas python scripts/write_kubernetes_schemas.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

VERSIONS = ("1.30", "1.37")
KINDS = {
    "Deployment": "apps/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "NetworkPolicy": "networking/v1",
    "PodDisruptionBudget": "policy/v1",
    "Service": "v1",
    "StatefulSet": "apps/v1",
}
TARGET = Path(__file__).resolve().parents[1] / "tests/unit/project/kubernetes_schemas.json"
DEFINITIONS = "/api/_definitions.json"


def without_descriptions(schema: Any) -> Any:
    """The schema with nothing but what validates."""
    if isinstance(schema, list):
        return [without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    texts = {name: value for name, value in schema.items() if isinstance(value, str)}  # also properties have names
    return {
        name: value.removeprefix(DEFINITIONS) if name in texts else without_descriptions(value)
        for name, value in schema.items()
        if not (name.startswith("x-kubernetes-") or (name in {"description", "$id", "$schema"} and name in texts))
    }


def references(schema: Any) -> Iterator[str]:
    """The names of the definitions that a schema uses."""
    if isinstance(schema, list):
        for item in schema:
            yield from references(item)
    elif isinstance(schema, dict):
        for name, value in schema.items():
            if name == "$ref" and isinstance(value, str):
                yield value.removeprefix("#/$defs/")
            else:
                yield from references(value)


def schemas_of(version: str) -> dict[str, Any]:
    """One schema of a version for all kinds; that of a kind is the definition with the kind's name."""
    folder = files("kubernetes_validate").joinpath(f"kubernetes-json-schema/v{version}.0-local-strict")

    def read(name: str) -> Any:
        return without_descriptions(json.loads(folder.joinpath(name).read_text(encoding="utf-8")))

    every = read("_definitions.json")["$defs"]
    kept = {kind: read(f"{kind.lower()}-{group.replace('/', '-')}.json") for kind, group in KINDS.items()}
    wanted = set(references(list(kept.values())))
    while wanted:
        name = wanted.pop()
        kept[name] = every[name]
        wanted |= set(references(every[name])) - kept.keys()
    return kept


if __name__ == "__main__":
    schemas = json.dumps({version: schemas_of(version) for version in VERSIONS}, sort_keys=True, separators=(",", ":"))
    TARGET.write_text(f"{schemas}\n", encoding="utf-8")
