"""The alert rules and the dashboard of docs/monitoring, the metrics that scale workers, and what their queries use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
ALERTS_FILE = ROOT / "docs/monitoring/alerts.yml"
DASHBOARD_FILE = ROOT / "docs/monitoring/grafana-dashboard.json"
SCALED_OBJECT_FILE = ROOT / "docs/deployment/kubernetes/workers/scaled-object.yaml"
_SELECTOR = re.compile(r"\b(deferd_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.load(ALERTS_FILE.read_bytes(), yaml.CSafeLoader)["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD_FILE.read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Each query with the name of its alert, panel, variable or scaled object."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    scaled = yaml.safe_load(SCALED_OBJECT_FILE.read_text(encoding="utf-8"))
    for trigger in scaled["spec"]["triggers"]:
        yield f"scaled object {scaled['metadata']['name']}", trigger["metadata"]["query"]


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of a query with the labels that select its series."""
    for name, labels in _SELECTOR.findall(query):
        yield name, {re.split(r"[=!]", label.strip())[0] for label in labels.split(",") if label.strip()}


def grouped_by(query: str) -> set[str]:
    """The labels by which a query groups or matches."""
    return {label.strip() for labels in _BY.findall(query) for label in labels.split(",")}
