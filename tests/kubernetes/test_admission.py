"""What API servers and webhooks check beside the schemas: rules of Jobs, of JobSet's webhook and of Kubeflow Trainer's, as their sources state them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kubernetes.rendered import LINES, jobs_of, objects_of, pods_of, text_of
from tests.kubernetes.test_exit_codes import job_set_of

JOBSETS = [name for name in LINES if not name.startswith("job_")]
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


@pytest.mark.parametrize("name", LINES)
def test_jobs_keep_what_their_fields_ask_of_each_other(name: str) -> None:
    for job in jobs_of(text_of(name)):
        rules = job["podFailurePolicy"]["rules"]
        assert len(rules) <= 20
        for values in (rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule):
            assert values == sorted(set(values))
            assert 0 not in values
            assert len(values) <= 255
        if "backoffLimitPerIndex" in job:
            assert job["completionMode"] == "Indexed"
            assert job["maxFailedIndexes"] <= job["completions"]
        else:
            assert "maxFailedIndexes" not in job


@pytest.mark.parametrize("name", LINES)
def test_pods_keep_what_their_fields_ask_of_each_other(name: str) -> None:
    for pod in pods_of(text_of(name)):
        spec = pod["spec"]
        [container] = spec["containers"]
        names = [one["name"] for one in container["env"]]
        assert len(set(names)) == len(names)
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {"seconds": 1})
        assert 0 < sleep["seconds"] <= spec["terminationGracePeriodSeconds"]
        assert {one["effect"] for one in spec["tolerations"]} == {"NoExecute"}
        assert container["name"] not in [one["name"] for one in spec.get("initContainers", ())]
        for resources in [container["resources"]] if "resources" in container else []:
            # Of an extended resource both must be the same.
            assert resources["requests"] == resources["limits"]


@pytest.mark.parametrize("name", JOBSETS)
def test_a_jobset_passes_its_webhook(name: str) -> None:
    text = text_of(name)
    job_set, called = job_set_of(text), objects_of(text)[-1]["metadata"]["name"]
    replicated = {one["name"]: one for one in job_set["replicatedJobs"]}

    assert len(replicated) == len(job_set["replicatedJobs"])
    for one in replicated.values():
        assert one["replicas"] <= 1024
        last = one["template"]["spec"]["completions"] - 1
        assert _LABEL.fullmatch(f"{called}-{one['name']}-{one['replicas'] - 1}-{last}-abcde")
    rules = [rule["name"] for rule in job_set["failurePolicy"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(_RULE.fullmatch(rule) for rule in rules)
    assert set(job_set["successPolicy"]["targetReplicatedJobs"]) <= set(replicated)


def test_a_training_runtime_passes_its_webhook_and_has_its_nodes() -> None:
    [runtime, train_job] = objects_of(text_of("trainjob_shared"))[-2:]
    spec = runtime["spec"]["template"]["spec"]

    nodes = [one for one in spec["replicatedJobs"] if _ancestor(one) == "trainer"]
    assert [one["name"] for one in nodes] == ["host"]
    assert nodes[0]["replicas"] == 1
    assert [one["name"] for one in nodes[0]["template"]["spec"]["template"]["spec"]["containers"]] == ["node"]
    # Trainer gives the nodes' Job as many pods, and the others keep their own.
    assert runtime["spec"]["mlPolicy"] == {"numNodes": nodes[0]["template"]["spec"]["completions"]}
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def _ancestor(replicated: dict[str, Any]) -> str | None:
    labels = replicated["template"].get("metadata", {}).get("labels", {})
    found: str | None = labels.get("trainer.kubeflow.org/trainjob-ancestor-step")
    return found
