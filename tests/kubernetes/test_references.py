"""Whatever a pod names is rendered beside it, or named as needed in the first lines; no secret is in the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from recovery.kubernetes.yaml_text import document
from tests.kubernetes.rendered import LINES, objects_of, pods_of, run, text_of


def named(one: Any) -> Iterator[tuple[str, str]]:
    """The kind and name of every object that something refers to."""
    if isinstance(one, list):
        for part in one:
            yield from named(part)
    elif isinstance(one, dict):
        for key, value in one.items():
            if key in ("secretKeyRef", "secretRef"):
                yield "Secret", value["name"]
            elif key == "imagePullSecrets":
                yield from (("Secret", secret["name"]) for secret in value)
            elif key == "persistentVolumeClaim":
                yield "PersistentVolumeClaim", value["claimName"]
            elif key == "podGroupName":
                yield "PodGroup", value
            elif key == "runtimeRef":
                yield value["kind"], value["name"]
            elif key in ("configMap", "configMapRef", "configMapKeyRef"):
                yield "ConfigMap", value["name"]
            elif key == "secret":
                yield "Secret", value["secretName"]
            else:
                yield from named(value)


@pytest.mark.parametrize("name", LINES)
def test_whatever_is_named_is_there_or_said_to_be_needed(name: str) -> None:
    text = text_of(name)
    there = {(one["kind"], one["metadata"]["name"]) for one in objects_of(text)}
    [needed] = [line for line in text.splitlines() if line.startswith("# needed beside it:")]

    referred = {reference for one in objects_of(text) for reference in named(one)}

    assert ("Secret", "resnet-token") in referred
    for kind, called in referred - there:
        assert f"{kind} {called}" in needed


@pytest.mark.parametrize("name", LINES)
def test_the_name_that_hosts_dial_is_the_service_of_the_scheduler(name: str) -> None:
    text = text_of(name)
    [service] = [one for one in objects_of(text) if one["kind"] == "Service"]
    [port] = service["spec"]["ports"]
    found = [
        pod
        for pod in pods_of(text)
        if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ]

    [container] = found[0]["spec"]["containers"]
    assert len(found) == 1
    assert container["command"] == ["recovery", "scheduler"]
    assert container["ports"][0]["containerPort"] == port["targetPort"] == port["port"]
    assert service["spec"]["publishNotReadyAddresses"]
    # A launcher looks the name up once: the address must outlive the pod.
    assert service["spec"].get("clusterIP") != "None"
    assert f"--rdzv_endpoint={service['metadata']['name']}:{port['port']}" in text


@pytest.mark.parametrize("name", LINES)
def test_objects_have_names_and_a_namespace_of_their_own(name: str) -> None:
    found = objects_of(text_of(name))
    names = [(one["kind"], one["metadata"]["name"]) for one in found]

    assert len(set(names)) == len(names)
    wanted = "research" if "--namespace=research" in LINES[name] else None
    # No schema says so: an API server refuses a namespace of what is the cluster's.
    of_cluster = [one for one in found if one["kind"] == "ClusterTrainingRuntime"]
    assert {one["metadata"].get("namespace") for one in found if one not in of_cluster} == {wanted}
    assert not any("namespace" in one["metadata"] for one in of_cluster)


@pytest.mark.parametrize("name", LINES)
def test_a_volume_that_is_mounted_is_there(name: str) -> None:
    for pod in pods_of(text_of(name)):
        volumes = {one["name"] for one in pod["spec"]["volumes"]}
        mounted = {one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
        assert volumes == mounted


def test_the_store_lies_on_a_volume_of_one_pod() -> None:
    found = {
        one["metadata"]["name"]: one["spec"]["accessModes"]
        for one in objects_of(text_of("jobset_shared"))
        if "Claim" in one["kind"]
    }

    assert found == {"resnet-scheduler": ["ReadWriteOncePod"], "resnet-checkpoints": ["ReadWriteMany"]}


@pytest.mark.parametrize("name", LINES)
def test_the_token_comes_from_its_secret_alone(name: str) -> None:
    for pod in pods_of(text_of(name)):
        for container in pod["spec"]["containers"]:
            [token] = [one for one in container["env"] if one["name"] == "MS_JOB_TOKEN"]
            assert token == {
                "name": "MS_JOB_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "resnet-token", "key": "token"}},
            }


def test_a_pod_group_counts_hosts_and_spares() -> None:
    text = text_of("jobset_shared")
    [group] = [one for one in objects_of(text) if one["kind"] == "PodGroup"]

    members = [
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods_of(text)
        if "schedulingGroup" in pod["spec"]
    ]
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2 + 2}}}
    assert members == ["host"]


def test_a_host_has_what_was_asked_for() -> None:
    [host] = [pod for pod in pods_of(text_of("jobset_shared")) if "schedulingGroup" in pod["spec"]]
    limits = host["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "4"}


def test_the_same_line_gives_the_same_text() -> None:
    assert text_of("job_object") == text_of("job_object")


TEXTS = (
    *("yes", "No", "on", "null", "~", "true", "1", "1e3", "0x1f", "1_000", ".inf", "2026-01-01", "1:30", "", " ", "-", "=", "<<"),
    *("a: b", "#a", "a #b", "'", '"', "\\", "é", "日本", "$(A)", "- a", "[a]", "{a}", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a`", "a\nb", "a\n  b\n\nc"),
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_written_so_that_they_are_read_as_texts(text: str) -> None:
    key = text.replace("\n", " ")
    data = {
        "a": text,
        "b": [text, {"c": text}],
        key or "empty": {"d": [1, True]},
        "e": {},
        "f": [],
        "g": [[text]] if "\n" not in text else 1,
    }

    assert yaml.safe_load(document(data)) == data


def test_a_file_is_written_where_it_is_wanted(tmp_path: Any) -> None:
    file = tmp_path / "job.yaml"

    said = run("--name=resnet", "--image=a", f"--output={file}").text

    assert file.read_text() == run("--name=resnet", "--image=a").text
    assert f"kubectl apply -f {file}" in said
    error = run("--name=resnet", "--image=a", f"--output={tmp_path}/none/job.yaml").error
    assert "--output=" in str(error)
