"""What people build and run: the image, the compose file with the proxy's configuration in it, and the files that
docs/deployment.md and docs/operations.md show: systemd unit, Kubernetes manifest, Prometheus configuration.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deferd.contract import limits
from deferd.server.http.connections import KEEP_ALIVE_S
from deferd.settings import Settings, load_settings, variable

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def interpolated(text: str, environment: dict[str, str] | None = None) -> str:
    """`text` as Compose interpolates it.

    `${NAME:-default}` is the variable or the default, `${NAME:+text}` is the text if there is such a variable, and
    `$$` is a dollar sign.
    """
    variables = environment or {}

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        found = variables.get(match["name"])
        return found or match["text"] if match["kind"] == "-" else (found and match["text"]) or ""

    return re.sub(r"\$\$|\$\{(?P<name>\w+):(?P<kind>[-+])(?P<text>[^}]*)\}", value, text)


def nginx_config(environment: dict[str, str] | None = None) -> str:
    return interpolated(COMPOSE["configs"]["nginx"]["content"], environment)


def test_the_image_builds_the_package_with_the_locked_backend() -> None:
    commands = re.findall(r"(/opt/(build|deferd)/bin/pip) (\w+) ([^\\&\n]*)", DOCKERFILE)

    assert [venv for _, venv, verb, _ in commands if verb == "wheel"] == ["build"]
    for _, venv, verb, flags in commands:
        if "--require-hashes" in flags:
            lock = "requirements-build.lock" if venv == "build" else "requirements.lock"
            assert flags.split()[-1] == lock
        else:
            assert {"--no-index", "--no-deps"} <= set(flags.split()), f"pip {verb} could download what is not pinned"
            assert verb != "wheel" or "--no-build-isolation" in flags


def test_the_image_serves_as_an_ordinary_user_and_stops_by_sigterm() -> None:
    user = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)[-1]
    command = json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])

    assert not user.startswith(("0", "root"))
    assert ["deferd", "serve", "--host", "0.0.0.0", "--data-dir", "/data"] == command  # noqa: S104 - in its container
    assert "VOLUME /data" in DOCKERFILE
    assert not re.search(r"^(ENV|ARG)\b.*DEFERD_(INSECURE|KEYS)", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*?/healthz", DOCKERFILE, re.MULTILINE | re.DOTALL)


def test_the_image_has_a_python_that_the_package_supports() -> None:
    images = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))
    classifiers = PYPROJECT["project"]["classifiers"]

    assert 1 == len(images)
    python = re.fullmatch(r"python:(3\.\d+)-slim-\w+@sha256:[0-9a-f]{64}", images.pop())
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in classifiers


def test_the_builder_receives_only_what_the_image_copies() -> None:
    copied = set(
        re.findall(r"[\w./-]+", " ".join(re.findall(r"^COPY (?!--from)(.*) \./\w*$", DOCKERFILE, re.MULTILINE)))
    )
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}

    assert sent == copied


def test_the_compose_file_follows_the_schema() -> None:
    run = subprocess.run(
        [
            Path(sysconfig.get_path("scripts")) / "check-jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            ROOT / "docker-compose.yml",
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert 0 == run.returncode, run.stdout + run.stderr


def test_each_replica_has_its_own_port_for_its_metrics() -> None:
    service = COMPOSE["services"]["deferd"]
    [port] = service["ports"]
    first, last = map(int, re.fullmatch(r"127\.0\.0\.1:(\d+)-(\d+):8000", port).groups())  # type: ignore[union-attr]

    assert last - first + 1 == service["deploy"]["replicas"]
    assert not first <= 8000 <= last, "the proxy uses that port"


def documented(page: str, language: str, first_line: str) -> str:
    """The only block of a page in a language that begins with this line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [block] = re.findall(rf"^```{language}\n({re.escape(first_line)}\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)


def test_the_scrape_configuration_of_the_docs_finds_every_replica() -> None:
    [job] = yaml.safe_load(documented("operations.md", "yaml", "scrape_configs:"))["scrape_configs"]
    [found_by] = job["dns_sd_configs"]

    assert {"names": ["deferd"], "type": "A", "port": 8000} == found_by
    assert set(found_by["names"]) <= COMPOSE["services"].keys()
    assert "metrics_path" not in job, "Prometheus uses /metrics by default"


def test_compose_sets_only_variables_that_are_settings() -> None:
    environment = COMPOSE["services"]["deferd"]["environment"]
    command = COMPOSE["services"]["deferd"]["command"]

    assert set(environment) <= {variable(name) for name in Settings.model_fields}
    assert "redis://store:6379/0" == environment["DEFERD_REDIS_URL"]
    assert str(limits.BODY_DEFAULT_BYTES) == interpolated(environment["DEFERD_MAX_BODY_BYTES"])
    assert "--data-dir" not in command


def test_compose_listens_without_keys_only_on_ports_of_this_machine() -> None:
    environment = COMPOSE["services"]["deferd"]["environment"]

    assert "true" == environment["DEFERD_INSECURE"]
    assert "" == interpolated(environment["DEFERD_KEYS"])
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def compose_settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    """The settings of the service in its container, from the variables that Compose passes on."""
    for name in [name for name in os.environ if name.startswith("DEFERD_")]:
        monkeypatch.delenv(name)
    for name, value in COMPOSE["services"]["deferd"]["environment"].items():
        monkeypatch.setenv(name, interpolated(value, variables))
    return load_settings({})


def test_compose_mounts_the_keys_as_a_secret_file(monkeypatch: pytest.MonkeyPatch) -> None:
    [secret] = COMPOSE["services"]["deferd"]["secrets"]
    source = COMPOSE["secrets"][secret]["file"]
    settings = compose_settings(monkeypatch, DEFERD_KEYS_FILE="./keys.toml")

    assert "./keys.toml" == interpolated(source, {"DEFERD_KEYS_FILE": "./keys.toml"})
    assert (Path("/run/secrets") / secret, None) == (settings.keys_file, settings.keys)


def test_compose_starts_without_keys_when_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    [secret] = COMPOSE["services"]["deferd"]["secrets"]
    settings = compose_settings(monkeypatch)

    assert (None, None) == (settings.keys_file, settings.keys)
    assert "/dev/null" == interpolated(COMPOSE["secrets"][secret]["file"]), "which is on every host"


def test_compose_accepts_keys_as_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = compose_settings(monkeypatch, DEFERD_KEYS="[[key]]")

    assert settings.keys_file is None
    assert settings.keys is not None


def test_the_store_keeps_every_acknowledged_write() -> None:
    store = COMPOSE["services"]["store"]
    options = dict(zip(store["command"][1::2], store["command"][2::2], strict=True))

    assert "yes" == options["--appendonly"]
    assert "always" == options["--appendfsync"]
    assert "noeviction" == options["--maxmemory-policy"]
    assert ["jobs:/data"] == store["volumes"]
    assert "jobs" in COMPOSE["volumes"]


def test_each_image_is_pinned_and_each_service_has_a_health_check() -> None:
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            continue
        assert re.fullmatch(r"[\w/]+:\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", service["image"]), name
        assert "healthcheck" in service, name


def seconds(directive: str) -> int:
    """The only value of a directive of the proxy's configuration."""
    [value] = re.findall(rf"^ *{directive} (\d+)s;$", nginx_config(), re.MULTILINE)
    return int(value)


def test_the_time_outs_of_the_proxy_are_longer_than_a_pop() -> None:
    assert seconds("proxy_read_timeout") > limits.WAIT_MAX_S
    assert seconds("proxy_send_timeout") > limits.WAIT_MAX_S


def test_the_proxy_drops_an_idle_connection_before_the_service_does() -> None:
    assert seconds("keepalive_timeout") < KEEP_ALIVE_S


def systemd_unit() -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names of settings have capitals
    unit.read_string(documented("deployment.md", "ini", "[Unit]"))
    return unit


def test_the_systemd_unit_runs_the_service_as_an_ordinary_user_with_its_own_directory() -> None:
    text = documented("deployment.md", "ini", "[Unit]")
    service = systemd_unit()["Service"]
    environment = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.+)$", text, re.MULTILINE))

    assert service["ExecStart"].split()[1:] == ["serve"]
    assert service["User"] not in {"", "root"}
    assert "/var/lib/" + service["StateDirectory"] == environment["DEFERD_DATA_DIR"]
    assert "0700" == service["StateDirectoryMode"]
    assert environment.keys() <= {variable(name) for name in Settings.model_fields}
    assert "mixed" == service["KillMode"], "else systemd would stop the embedded store before the service has drained"
    assert int(service["TimeoutStopSec"].removesuffix("s")) > 2 * Settings.model_fields["drain_timeout"].default


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = documented("deployment.md", "ini", "[Unit]")
    unit = tmp_path / "deferd.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert 0 == ran.returncode, ran.stderr


def kubernetes() -> dict[str, dict[str, Any]]:
    """The objects of the manifest by their kind."""
    objects = yaml.safe_load_all(documented("deployment.md", "yaml", "apiVersion: apps/v1"))
    return {one["kind"]: one for one in objects}


def test_the_kubernetes_manifest_has_the_fields_that_its_schema_requires() -> None:
    objects = kubernetes()
    deployment, service = objects["Deployment"], objects["Service"]
    template = deployment["spec"]["template"]

    assert ("apps/v1", "v1") == (deployment["apiVersion"], service["apiVersion"])
    assert all(one.keys() == {"apiVersion", "kind", "metadata", "spec"} for one in objects.values())
    assert {"replicas", "strategy", "selector", "template"} == deployment["spec"].keys()
    assert {"type": "Recreate"} == deployment["spec"]["strategy"], "else an upgrade mixes revisions on one store"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    [container] = template["spec"]["containers"]
    assert container["volumeMounts"][0]["name"] == template["spec"]["volumes"][0]["name"]
    [port], [exposed] = container["ports"], service["spec"]["ports"]
    assert port["name"] == exposed["targetPort"]
    assert port["containerPort"] == Settings.model_fields["port"].default


def test_the_kubernetes_manifest_fits_the_service() -> None:
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {entry["name"]: entry for entry in container["env"]}

    assert environment.keys() <= {variable(name) for name in Settings.model_fields}
    assert environment["DEFERD_KEYS_FILE"]["value"].startswith(container["volumeMounts"][0]["mountPath"] + "/")
    assert ["deferd", "serve", "--host", "0.0.0.0"] == container["args"]  # noqa: S104 - in its container
    assert ("/healthz", "/readyz") == tuple(
        container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")
    )
    assert pod["enableServiceLinks"] is False, "else a Service named deferd sets DEFERD_PORT=tcp://..."
    assert pod["terminationGracePeriodSeconds"] > 2 * Settings.model_fields["drain_timeout"].default
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in DOCKERFILE
    assert container["image"].endswith(":" + PYPROJECT["project"]["version"])
