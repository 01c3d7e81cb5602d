"""What people build and run: the image, the compose file with the proxy's configuration in it, the manifests of
docs/deployment/kubernetes/, and the files that docs/deployment.md and docs/operations.md show: systemd unit, Prometheus
configuration.
"""

from __future__ import annotations

import configparser
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deferd import Worker
from deferd.cli.outbox.relay import relay
from deferd.contract import limits
from deferd.server.http.connections import KEEP_ALIVE_S
from deferd.server.http_server import CLOSING_S
from deferd.settings import Settings, load_settings, variable

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = yaml.load((ROOT / "docker-compose.yml").read_bytes(), yaml.CSafeLoader)
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
        timeout=280,
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


def test_the_relays_are_in_a_profile_and_know_their_database_and_the_service() -> None:
    services = COMPOSE["services"]
    relays, database = services["relay"], services["postgres"]
    environment = {name: interpolated(value) for name, value in relays["environment"].items()}
    outbox, service = urlsplit(environment["DEFERD_OUTBOX_URL"]), urlsplit(environment["DEFERD_URL"])

    assert {"store", "deferd", "proxy"} == {name for name, one in services.items() if "profiles" not in one}
    assert relays["profiles"] == database["profiles"]
    assert ["sh", "-c", "deferd outbox init && exec deferd relay"] == relays["command"]
    assert environment.keys() <= {parameter.envvar for parameter in relay.params}
    assert services[str(outbox.hostname)] is database
    assert f"/{database['environment']['POSTGRES_DB']}" == outbox.path
    assert interpolated(database["environment"]["POSTGRES_PASSWORD"]) == outbox.password
    assert (service.hostname, service.port) == ("deferd", 8000)
    assert {"disable": True} == relays["healthcheck"], "that of the image asks for a service in the container"


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
        timeout=280,
        check=False,
    )

    assert 0 == ran.returncode, ran.stderr


FOLDER = ROOT / "docs/deployment/kubernetes"
MANIFESTS = sorted(FOLDER.rglob("*.yaml"))
SCHEMAS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("kubernetes_schemas.json").read_bytes())
"""Of the oldest and the newest version of Kubernetes, by `scripts/write_kubernetes_schemas.py`."""


def manifest(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((FOLDER / name).read_bytes(), yaml.CSafeLoader)
    return content


def is_builtin(content: dict[str, Any]) -> bool:
    """Whether Kubernetes itself has the kind; others have groups with the domain of their project."""
    group = content["apiVersion"].rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


BUILTIN = [
    str(file.relative_to(FOLDER))
    for file in MANIFESTS
    if file.name != "kustomization.yaml" and is_builtin(manifest(str(file)))
]


@pytest.mark.parametrize("version", list(SCHEMAS))
@pytest.mark.parametrize("name", BUILTIN)
def test_a_manifest_follows_the_schema_of_kubernetes(name: str, version: str) -> None:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # noqa: PLC0415 (it takes a second)

    content = manifest(name)
    schema = SCHEMAS[version][content["kind"]] | {"$defs": SCHEMAS[version]}

    validator = Draft202012Validator(schema)
    validator.validate(content)
    assert not validator.is_valid({**content, "spec": {**content["spec"], "replica": 2}})
    assert not validator.is_valid({**content, "apiVersion": "v1beta1"})


def fields(content: object, path: str = "") -> set[str]:
    """The paths of all values below `content`; the items of a list share one."""
    if isinstance(content, dict):
        return set().union(*(fields(value, f"{path}.{name}") for name, value in content.items()))
    if isinstance(content, list):
        return set().union(*(fields(item, path) for item in content))
    return {path}


def test_kinds_that_others_define_have_only_fields_that_were_compared_with_their_definitions() -> None:
    """No package brings these schemas. Those of KEDA 2.20 and of the Prometheus operator 0.93 accept both."""
    scaled, monitor = manifest("workers/scaled-object.yaml"), manifest("service-monitor.yaml")

    assert ("keda.sh/v1alpha1", "ScaledObject") == (scaled["apiVersion"], scaled["kind"])
    of_trigger = {"serverAddress", "query", "threshold", "ignoreNullValues"}
    assert fields(scaled["spec"]) == {
        ".scaleTargetRef.name",
        *(".minReplicaCount", ".maxReplicaCount", ".pollingInterval", ".cooldownPeriod"),
        *(".triggers.type", ".triggers.metricType", *(f".triggers.metadata.{name}" for name in of_trigger)),
    }
    assert all(isinstance(value, str) for one in scaled["spec"]["triggers"] for value in one["metadata"].values())
    assert ("monitoring.coreos.com/v1", "ServiceMonitor") == (monitor["apiVersion"], monitor["kind"])
    assert fields(monitor["spec"]) == {
        ".selector.matchLabels.app.kubernetes.io/name",
        *(".endpoints.port", ".endpoints.path", ".endpoints.interval"),
        *(f".endpoints.authorization.{name}" for name in ("type", "credentials.name", "credentials.key")),
    }


def test_each_manifest_is_checked_and_applied_or_named_on_the_page() -> None:
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    applied: set[Path] = set()
    for file in MANIFESTS:
        if file.name == "kustomization.yaml":
            kustomization = manifest(str(file))
            assert {"apiVersion", "kind", "resources", "images"} == kustomization.keys()
            [image] = kustomization["images"]
            assert {"name": "registry.example/deferd", "newTag": PYPROJECT["project"]["version"]} == image
            applied |= {file.parent / name for name in kustomization["resources"]}

    assert applied <= set(MANIFESTS)
    for file in set(MANIFESTS) - applied:
        assert f"(deployment/kubernetes/{file.relative_to(FOLDER)})" in page, file


def pod_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", ["deployment.yaml", "embedded/stateful-set.yaml"])
def test_the_pods_of_kubernetes_fit_the_service(name: str) -> None:
    content, pod = manifest(name), pod_of(name)
    [container] = pod["containers"]
    [port] = container["ports"]
    [exposed] = manifest("service.yaml")["spec"]["ports"]
    environment = {entry["name"]: entry for entry in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = [*pod["volumes"], *(one["metadata"] for one in content["spec"].get("volumeClaimTemplates", ()))]
    labels = content["spec"]["template"]["metadata"]["labels"]

    assert environment.keys() <= {variable(name) for name in Settings.model_fields}
    assert environment["DEFERD_KEYS_FILE"]["value"].startswith(mounts["keys"] + "/")
    assert mounts.keys() == {volume["name"] for volume in volumes}
    assert ["deferd", "serve", "--host", "0.0.0.0"] == container["args"][:4]  # noqa: S104 - in its container
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert ["/healthz", "/healthz", "/readyz"] == [container[probe]["httpGet"]["path"] for probe in probes]
    assert {port["name"]} == {container[probe]["httpGet"]["port"] for probe in probes}
    assert port["name"] == exposed["targetPort"]
    assert port["containerPort"] == Settings.model_fields["port"].default
    assert pod["enableServiceLinks"] is False, "else a Service named deferd sets DEFERD_PORT=tcp://..."
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in DOCKERFILE
    assert container["image"].endswith(":" + PYPROJECT["project"]["version"])
    for selector in (content["spec"]["selector"], manifest("network-policy.yaml")["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert manifest("service.yaml")["spec"]["selector"].items() <= labels.items()


def test_the_embedded_store_has_the_service_of_the_replicas_and_a_volume_for_its_data() -> None:
    content, [container] = manifest("embedded/stateful-set.yaml"), pod_of("embedded/stateful-set.yaml")["containers"]

    assert manifest("embedded/service.yaml") == manifest("service.yaml")
    assert 1 == content["spec"]["replicas"], "a data directory belongs to one service"
    assert content["spec"]["serviceName"] == manifest("service.yaml")["metadata"]["name"]
    assert ["--data-dir", "/data/jobs"] == container["args"][4:]
    assert "DEFERD_REDIS_URL" not in {entry["name"] for entry in container["env"]}


def drain_s(environment: dict[str, str]) -> float:
    """How long a service with these variables may take from SIGTERM until it has ended, without its store."""
    values = {name: Settings.model_fields[name].default for name in ("drain_idle_timeout", "drain_timeout")}
    return CLOSING_S + sum(float(environment.get(variable(name), default)) for name, default in values.items())


@pytest.mark.parametrize("name", ["deployment.yaml", "embedded/stateful-set.yaml"])
def test_a_pod_of_kubernetes_has_the_time_that_its_end_takes(name: str) -> None:
    pod = pod_of(name)
    [container] = pod["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    pre_stop_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)

    assert pod["terminationGracePeriodSeconds"] > pre_stop_s + drain_s(environment) + 5


def test_a_rolling_update_keeps_all_replicas_and_their_connections() -> None:
    spec, [container] = manifest("deployment.yaml")["spec"], pod_of("deployment.yaml")["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}

    assert {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}} == spec["strategy"]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5, "as long as nodes take to withdraw an endpoint"
    assert float(environment["DEFERD_DRAIN_IDLE_TIMEOUT"]) >= 5
    assert manifest("pod-disruption-budget.yaml")["spec"]["maxUnavailable"] < spec["replicas"]
    for constraint in spec["template"]["spec"]["topologySpreadConstraints"]:
        assert constraint["labelSelector"] == spec["selector"]


def test_compose_and_systemd_give_the_service_the_time_that_its_end_takes() -> None:
    compose = COMPOSE["services"]["deferd"]
    stop_s = int(systemd_unit()["Service"]["TimeoutStopSec"].removesuffix("s"))

    assert int(compose["stop_grace_period"].removesuffix("s")) > drain_s(compose["environment"]) + 5
    assert stop_s > drain_s({"DEFERD_DRAIN_IDLE_TIMEOUT": "10"}) + 5, "as the page recommends beside other replicas"


def test_the_network_policy_lets_workers_call_the_service_and_the_service_its_store() -> None:
    spec = manifest("network-policy.yaml")["spec"]
    [ingress] = spec["ingress"]
    worker = manifest("workers/deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    callers = [one["podSelector"]["matchLabels"].items() for one in ingress["from"] if "podSelector" in one]

    assert ["Ingress", "Egress"] == spec["policyTypes"]
    assert ["http"] == [port["port"] for port in ingress["ports"]]
    assert any(labels <= worker.items() for labels in callers)
    assert [{53}, {6379}, {443}] == [{port["port"] for port in one["ports"]} for one in spec["egress"]]
    assert all("to" in one for one in spec["egress"]), "else it would be everywhere"


def test_workers_scale_by_work_that_waits_and_have_time_to_end() -> None:
    worker, scaler = manifest("workers/deployment.yaml"), manifest("workers/autoscaler.yaml")["spec"]
    scaled = manifest("workers/scaled-object.yaml")["spec"]
    grace_s = inspect.signature(Worker).parameters["grace"].default
    adapter = (FOLDER / "workers/autoscaler.yaml").read_text(encoding="utf-8").partition("apiVersion")[0]

    assert "replicas" not in worker["spec"], "an apply would undo what the autoscaler has set"
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > grace_s + 5
    assert worker["metadata"]["name"] == scaled["scaleTargetRef"]["name"] == scaler["scaleTargetRef"]["name"]
    by_hpa = [(one["external"]["target"], one["external"]["metric"]) for one in scaler["metrics"]]
    assert [(one["metricType"], one["metadata"]["threshold"]) for one in scaled["triggers"]] == [
        (target["type"], target.get("averageValue") or target["value"]) for target, _ in by_hpa
    ]
    for (_, metric), trigger in zip(by_hpa, scaled["triggers"], strict=True):
        [(label, value)] = metric["selector"]["matchLabels"].items()
        assert f'{label}="{value}"' in trigger["metadata"]["query"]
        assert metric["name"] in adapter
