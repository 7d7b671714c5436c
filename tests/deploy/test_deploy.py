"""The container files and manifests below deploy/: their schemas, and that what they tell luce serve is understood."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from luce.supervisor.cli.serve import known_flags
from luce.supervisor.config.loading import Configuration, read_configuration
from luce.supervisor.http.admin.endpoints import OPERATIONS
from luce.supervisor.http.transport.served_hosts import ServedHosts
from luce.supervisor.kv_events.config import Endpoint

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILES = sorted(DEPLOY.glob("Containerfile*"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
KUBERNETES = ("1.30", "1.33", "1.37")

_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def _manifest(version: str, spec: dict[str, Any]) -> dict[str, Any]:
    name = _object({"name": _NAME})
    return _object({"apiVersion": {"const": version}, "kind": {"type": "string"}, "metadata": name, "spec": spec})


# Of what Kubernetes has no schema for: the fields that are used here, as the projects' references have them.
_BACKEND = _object({"name": _NAME}, group={"type": "string"}, kind={"type": "string"}, port=_PORT)
SCHEMAS = {
    "InferencePool": _manifest(
        "inference.networking.k8s.io/v1",
        _object(
            {
                "selector": _object({"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}}),
                "targetPorts": {"type": "array", "items": _object({"number": _PORT}), "minItems": 1, "maxItems": 8},
                "endpointPickerRef": _object({"name": _NAME, "port": _object({"number": _PORT})}),
            }
        ),
    ),
    "HTTPRoute": _manifest(
        "gateway.networking.k8s.io/v1",
        _object(
            {
                "parentRefs": {"type": "array", "items": _object({"name": _NAME})},
                "rules": {
                    "type": "array",
                    "items": _object(
                        {"backendRefs": {"type": "array", "items": _BACKEND}},
                        timeouts=_object({"request": {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}}),
                    ),
                },
            }
        ),
    ),
}


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def with_patch() -> dict[str, Any]:
    """The server on a GPU: containers are merged by name, lists replaced."""
    (patch,) = documents(DEPLOY / "kubernetes" / "cuda.patch.yaml")
    merged: dict[str, Any] = _merged(server(), patch)
    return merged


def _merged(base: Any, patch: Any) -> Any:
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: _merged(base.get(key), value) for key, value in patch.items()}
    if isinstance(base, list) and isinstance(patch, list) and all("name" in item for item in [*base, *patch]):
        changes = {item["name"]: item for item in patch}
        return [_merged(item, changes.get(item["name"], {})) for item in base]
    return patch


def server() -> dict[str, Any]:
    (found,) = (one for one in documents(DEPLOY / "kubernetes" / "server.yaml") if one["kind"] == "StatefulSet")
    return found


def container() -> dict[str, Any]:
    (only,) = server()["spec"]["template"]["spec"]["containers"]
    return dict(only)


def configuration(variables: dict[str, str]) -> Configuration:
    """Raises ConfigError where one of them is no option, or its value none for it."""
    return read_configuration(known_flags(), {}, variables, None)


def variables() -> Iterator[tuple[str, str]]:
    known = {"POD_IP": "10.1.2.3"}
    for entry in container()["env"]:
        value = entry.get("value", "from elsewhere")
        yield entry["name"], re.sub(r"\$\((\w+)\)", lambda named: known[named[1]], value)


def manifests() -> list[dict[str, Any]]:
    return [*(one for file in MANIFESTS if "patch" not in file.name for one in documents(file)), with_patch()]


def check(manifest: dict[str, Any], version: str) -> None:
    if (schema := SCHEMAS.get(manifest["kind"])) is not None:
        jsonschema_rs.validate(schema, manifest)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_have_kubernetes_schema(version: str) -> None:
    assert len(manifests()) >= 8
    for manifest in manifests():
        check(manifest, version)


def test_a_slip_in_a_manifest_is_noticed() -> None:
    refused = (
        kubernetes_validate.ValidationError,
        kubernetes_validate.SchemaNotFoundError,
        jsonschema_rs.ValidationError,
    )
    for manifest in manifests():
        for wrong in (
            {"metadata": {"name": 5}},
            {"spec": {**manifest["spec"], "podSelectr": {}}},
            {"apiVersion": "v9"},
        ):
            with pytest.raises(refused):
                check(manifest | wrong, KUBERNETES[-1])


def test_what_the_server_is_told_is_understood(tiny_model: Path) -> None:
    told = configuration({name: value for name, value in variables() if name.startswith("LUCE_")})
    settings = told.serve_settings()
    told.supervisor_config(model=tiny_model)
    assert settings.kv_events_topic == "kv@10.1.2.3@luce"
    services = [one["metadata"]["name"] for one in manifests() if one["kind"] == "Service"]
    hosts = ServedHosts.of(replace(settings, host="0.0.0.0"))  # noqa: S104  as the container files have it
    assert all(hosts.serves(host) for name in services for host in (name, f"luce-0.{name}.default.svc:8080"))
    pod = server()["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > settings.shutdown_delay_s + settings.shutdown_grace_s
    assert pod["enableServiceLinks"] is False, "LUCE_PORT=tcp://… of a service called luce is no option"
    ports = {port["containerPort"] for port in container()["ports"]}
    endpoints = [settings.kv_events, settings.kv_events_replay]
    assert {int(Endpoint.of(endpoint or "").address.rpartition(":")[2]) for endpoint in endpoints} <= ports
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert {str(told["disk_cache"]), str(told["model"].parent)} <= mounts


def test_what_is_asked_of_the_server_is_there() -> None:
    paths = {operation.path for operation in OPERATIONS}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["path"] in paths
    (scaling,) = documents(DEPLOY / "kubernetes" / "autoscaling.yaml")
    (metric,) = scaling["spec"]["metrics"]
    assert f"`{metric['pods']['metric']['name']}`" in (ROOT / "docs" / "metrics.md").read_text()
    assert scaling["spec"]["scaleTargetRef"]["name"] == server()["metadata"]["name"]


@pytest.mark.parametrize("file", CONTAINERFILES, ids=lambda file: file.name)
def test_the_container_files_are_sound(file: Path) -> None:
    looked = subprocess.run(
        [Path(sys.executable).parent / "hadolint", file], capture_output=True, text=True, timeout=120, check=False
    )
    assert looked.returncode == 0, looked.stdout + looked.stderr
    text = file.read_text()
    told = configuration(dict(re.findall(r"(LUCE_[A-Z]+)=(\S+)", "".join(re.findall(r"ENV (?:.*\\\n)*.*\n", text)))))
    assert told.serve_settings(open_to_all=True).host == "0.0.0.0"  # noqa: S104
    user = str(server()["spec"]["template"]["spec"]["securityContext"]["runAsUser"])
    assert f"USER {user}\n" in text
    defines = set(re.findall(r"cmake\.define\.(\w+)=", text))
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert all(define in cmake for define in defines - {"CMAKE_CUDA_ARCHITECTURES"})
