"""The examples under conf/: each is checked against the schema of what reads it, where that schema is to be had.

Kubernetes' own resources, pods included, have theirs in a package. The operators publish the schemas of their custom
resources in their repositories only: the fields that ours use are listed below, with the place they were read in.
"""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from bookwarden.config import Settings, load_settings, settings_schema

CONF = Path(__file__).parents[2] / "conf"
KUBERNETES = CONF / "deploy" / "kubernetes"
UNITS = sorted((CONF / "deploy" / "systemd").glob("*.service"))
STREAMS = ("", "follow-")
KUBERNETES_VERSION = "1.36"

# kubeflow/spark-operator, main branch after 2.5.2:
# charts/spark-operator-chart/crds/sparkoperator.k8s.io_sparkapplications.yaml
KUBEFLOW = {
    "": "type pythonVersion mode image imagePullPolicy mainApplicationFile arguments sparkVersion restartPolicy "
    "sparkConf volumes driver executor",
    "restartPolicy": "type onFailureRetries onFailureRetryInterval onSubmissionFailureRetries "
    "onSubmissionFailureRetryInterval",
    "driver": "cores memory memoryOverhead serviceAccount annotations ports env volumeMounts "
    "terminationGracePeriodSeconds lifecycle",
    "executor": "instances cores memory memoryOverhead volumeMounts",
}
# apache/spark-kubernetes-operator 1.0.0, its Helm chart's crds/sparkapplications.spark.apache.org-v1.yaml
APACHE = {
    "": "pyFiles driverArgs runtimeVersions applicationTolerations sparkConf driverSpec executorSpec",
    "runtimeVersions": "sparkVersion scalaVersion jdkVersion",
    "applicationTolerations": "resourceRetainPolicy restartConfig instanceConfig",
    "driverSpec": "podTemplateSpec",
    "executorSpec": "podTemplateSpec",
}
APACHE_RESTART = "restartPolicy maxRestartAttempts restartBackoffMillis restartCounterResetMillis"
APACHE_INSTANCES = "initExecutors minExecutors maxExecutors"


def resources(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def spec_of(name: str) -> dict[str, Any]:
    (resource,) = resources(name)
    assert resource["kind"] == "SparkApplication"
    spec: dict[str, Any] = resource["spec"]
    return spec


def assert_fields(spec: Mapping[str, Any], known: Mapping[str, str]) -> None:
    for part, fields in known.items():
        value = spec[part] if part else spec
        assert set(value) <= set(fields.split()), f"in spec.{part}"


@pytest.fixture
def mapped(tmp_path: Path) -> Settings:
    """The settings of the ConfigMap."""
    (found,) = (item for item in resources("bookwarden.yaml") if item["kind"] == "ConfigMap")
    text = found["data"]["bookwarden.yaml"]
    jsonschema.validate(yaml.safe_load(text), json.loads(settings_schema()))
    file = tmp_path / "bookwarden.yaml"
    file.write_text(text)
    return load_settings(file)


def driver_pods() -> Iterator[Any]:
    for stream in STREAMS:
        kubeflow = spec_of(f"sparkapplication-{stream}kubeflow.yaml")
        yield pytest.param(pod_of(kubeflow["driver"], kubeflow["volumes"]), id=f"{stream}kubeflow driver")
        apache = spec_of(f"sparkapplication-{stream}apache.yaml")
        yield pytest.param(apache["driverSpec"]["podTemplateSpec"], id=f"{stream}apache driver")


def executor_pods() -> Iterator[Any]:
    for stream in STREAMS:
        kubeflow = spec_of(f"sparkapplication-{stream}kubeflow.yaml")
        yield pytest.param(pod_of(kubeflow["executor"], kubeflow["volumes"]), id=f"{stream}kubeflow executor")
        apache = spec_of(f"sparkapplication-{stream}apache.yaml")
        yield pytest.param(apache["executorSpec"]["podTemplateSpec"], id=f"{stream}apache executor")


def pod_of(part: Mapping[str, Any], volumes: list[Any]) -> dict[str, Any]:
    """Make the pod template that the Kubeflow operator's webhook makes of a driver or executor section."""
    of_container = ("ports", "env", "volumeMounts", "lifecycle")
    container = {"name": "spark", **{name: part[name] for name in of_container if name in part}}
    pod = {"containers": [container], "volumes": volumes}
    if "terminationGracePeriodSeconds" in part:
        pod["terminationGracePeriodSeconds"] = part["terminationGracePeriodSeconds"]
    return {"metadata": {"annotations": part.get("annotations", {})}, "spec": pod}


def test_the_settings_schema_is_that_of_the_settings() -> None:
    written = json.loads((CONF / "schema" / "bookwarden.schema.json").read_text())
    assert written == json.loads(settings_schema()), "run make schema"


def test_the_settings_file_obeys_the_schema_and_a_misspelt_setting_does_not() -> None:
    schema = json.loads(settings_schema())
    settings = yaml.safe_load((CONF / "bookwarden.yaml").read_text())
    jsonschema.validate(settings, schema)
    settings["sweep"]["chekpoint"] = "var"
    with pytest.raises(jsonschema.ValidationError, match="chekpoint"):
        jsonschema.validate(settings, schema)


@pytest.mark.parametrize("resource", resources("bookwarden.yaml"), ids=lambda resource: resource["kind"])
def test_kubernetes_accepts_each_resource(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("template", [*driver_pods(), *executor_pods()])
def test_kubernetes_accepts_the_pods(template: dict[str, Any]) -> None:
    resource = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": template}
    kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("stream", STREAMS)
def test_kubeflow_knows_each_field_of_its_application(stream: str) -> None:
    (resource,) = resources(f"sparkapplication-{stream}kubeflow.yaml")
    assert resource["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert_fields(resource["spec"], KUBEFLOW)
    assert {"type", "mainApplicationFile", "sparkVersion", "driver", "executor"} <= set(resource["spec"])


@pytest.mark.parametrize("stream", STREAMS)
def test_the_apache_operator_knows_each_field_of_its_application(stream: str) -> None:
    (resource,) = resources(f"sparkapplication-{stream}apache.yaml")
    assert resource["apiVersion"] == "spark.apache.org/v1"
    assert_fields(resource["spec"], APACHE)
    tolerations = resource["spec"]["applicationTolerations"]
    assert_fields(tolerations, {"restartConfig": APACHE_RESTART, "instanceConfig": APACHE_INSTANCES})
    assert all(isinstance(value, str) for value in resource["spec"]["sparkConf"].values())


@pytest.mark.parametrize("template", [*driver_pods()])
def test_a_driver_is_given_time_to_finish_its_batch_and_is_scraped_where_it_serves(
    template: dict[str, Any], mapped: Settings
) -> None:
    assert template["spec"]["terminationGracePeriodSeconds"] > mapped.sweep.stop_timeout_seconds
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(mapped.metrics.port)
    (container,) = template["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [mapped.metrics.port]


@pytest.mark.parametrize("template", [*driver_pods(), *executor_pods()])
def test_every_pod_sees_the_files_that_the_settings_name(template: dict[str, Any], mapped: Settings) -> None:
    (container,) = template["spec"]["containers"]
    mounts = tuple(mount["mountPath"] for mount in container["volumeMounts"])
    for path in (mapped.pulsar.token_file, mapped.pulsar.tls_trust_certs_file, mapped.sweep.journal):
        assert str(path).startswith(mounts)


@pytest.mark.parametrize("template", [*driver_pods()])
def test_the_environment_of_a_driver_names_settings(template: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = template["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "from the secret"))
    assert load_settings().metadata_store.digest_user == "bookwarden"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_unit_gives_the_stream_time_to_finish_its_batch(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment]  # systemd's names are case-sensitive
    unit.read(path)
    assert unit["Service"]["KillMode"] == "mixed"
    assert float(unit["Service"]["TimeoutStopSec"]) > load_settings().sweep.stop_timeout_seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(tmp_path: Path, path: Path) -> None:
    copy = tmp_path / path.name
    # The only thing that is not so on this machine: where the program is installed.
    copy.write_text(path.read_text().replace("ExecStart=/opt/bookwarden/bin/bookwarden", "ExecStart=/bin/true"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")
