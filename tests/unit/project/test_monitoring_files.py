"""The alert rules and the dashboard: Prometheus accepts them, and each alert has a runbook and fires when it should."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.monitoring_files import ALERTS_FILE, DASHBOARD_FILE, ROOT, alerts, dashboard, panels, queries

CASES_FILE = Path(__file__).with_name("alert_cases.yml")
RUNBOOKS = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
needs_promtool = pytest.mark.needs("promtool")


def promtool(*arguments: str, folder: Path) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    promtool("check", "rules", "--lint-fatal", str(ALERTS_FILE), folder=ROOT)


@pytest.mark.slow
@needs_promtool
def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    for file in (ALERTS_FILE, CASES_FILE):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", CASES_FILE.name, folder=tmp_path)


@needs_promtool
def test_prometheus_parses_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "1m", "$instance": ".*", "$topic": ".*"}
    rules = []
    for number, (_, query) in enumerate(queries()):
        if not query.startswith("label_values("):
            for name, value in variables.items():
                query = query.replace(name, value)  # noqa: PLW2901
            rules.append({"record": f"query_{number}", "expr": query})
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", "queries.yml", folder=tmp_path)


def test_each_alert_has_cases_in_which_it_fires_and_in_which_it_does_not() -> None:
    fires: dict[str, set[bool]] = {rule["alert"]: set() for rule in alerts()}
    for case in yaml.safe_load(CASES_FILE.read_text(encoding="utf-8"))["tests"]:
        for test in case["alert_rule_test"]:
            fires[test["alertname"]].add("exp_alerts" in test)
    assert {name for name, seen in fires.items() if seen != {True, False}} == set()


@pytest.mark.parametrize("alert", [rule["alert"] for rule in alerts()])
def test_each_alert_has_a_runbook_that_says_what_to_look_at_and_do(alert: str) -> None:
    [rule] = [rule for rule in alerts() if rule["alert"] == alert]
    assert rule["annotations"]["runbook_url"] == f"https://docs.example.com/deferd/monitoring/#{alert.lower()}"
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    [section] = re.findall(rf"^### {alert}\n+(.*?)(?=^#|\Z)", RUNBOOKS, re.MULTILINE | re.DOTALL)
    assert re.search(r"^Look at: ", section, re.MULTILINE)
    assert re.search(r"^Do: ", section, re.MULTILINE)


def test_one_command_writes_the_address_of_the_runbooks_into_all_alerts() -> None:
    [command] = re.findall(r"^```sh\n(sed .*) docs/monitoring/alerts.yml > .*\n```", RUNBOOKS, re.MULTILINE)
    text = subprocess.run([*shlex.split(command), ALERTS_FILE], capture_output=True, text=True, timeout=60, check=True)
    [group] = yaml.load(text.stdout, yaml.CSafeLoader)["groups"]
    urls = [rule["annotations"]["runbook_url"] for rule in group["rules"]]
    own, theirs = (part.strip("'") for part in command.split("|")[1:3])
    assert urls == [rule["annotations"]["runbook_url"].replace(own, theirs) for rule in alerts()]
    assert not [url for url in urls if "example" in url]


def test_no_runbook_is_left_without_its_alert() -> None:
    assert re.findall(r"^### (Deferd\w+)$", RUNBOOKS, re.MULTILINE) == [rule["alert"] for rule in alerts()]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    cells: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert x < 24, panel["title"]
                assert (x, y) not in cells, f"{panel['title']} and {cells[x, y]}"
                cells[x, y] = panel["title"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_panels_use_the_data_source_that_is_chosen() -> None:
    sources = {target["datasource"]["uid"] for panel in panels() for target in [panel, *panel["targets"]]}
    assert sources == {"${datasource}"}
    assert DASHBOARD_FILE.read_text(encoding="utf-8").endswith("}\n")
