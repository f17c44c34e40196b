"""The rules of Jobs and JobSets, played as Kubernetes documents them: what the end of a container leads to is what the table of errors says."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.errors import ROWS, Cause
from tests.kubernetes.rendered import LINES, jobs_of, objects_of, pod_of, run, text_of

CODES = {row.exit_code: row.cause for row in ROWS.values() if row.code != "RECOVERY"}


def action(job: dict[str, Any], exit_code: int, *, disrupted: bool = False) -> str:
    """The first rule that matches, as the Job controller looks for it; without one the failure counts."""
    for rule in job["podFailurePolicy"]["rules"]:
        if disrupted and {"type": "DisruptionTarget", "status": "True"} in rule.get("onPodConditions", ()):
            return str(rule["action"])
        codes = rule.get("onExitCodes", {"values": ()})
        if exit_code in codes["values"]:
            assert (codes["operator"], codes["containerName"]) == ("In", "node")
            return str(rule["action"])
    return "Count"


def job_of(text: str, role: str) -> dict[str, Any]:
    template = pod_of(text, role)
    return next(job for job in jobs_of(text) if job["template"] == template)


@pytest.mark.parametrize("name", LINES)
def test_each_exit_code_leads_to_what_its_cause_says(name: str) -> None:
    text = text_of(name)

    assert len(CODES) > 40
    for role in ("scheduler", "host"):
        job = job_of(text, role)
        for code, cause in CODES.items():
            assert action(job, code) == ("FailJob" if cause is Cause.PERMANENT else "Count"), code
        for signal in (9, 11, 6):
            assert action(job, 128 + signal) == "Count"
        assert action(job, 1) == "Count"


@pytest.mark.parametrize("name", LINES)
def test_a_preemption_never_counts(name: str) -> None:
    for job in jobs_of(text_of(name)):
        assert action(job, 143) == action(job, 130) == "Ignore"
        for code in (137, 1, *CODES):
            assert action(job, code, disrupted=True) == "Ignore"


@pytest.mark.parametrize("name", LINES)
def test_a_pod_is_made_again_only_when_the_one_before_has_ended(name: str) -> None:
    for job in jobs_of(text_of(name)):
        assert job["podReplacementPolicy"] == "Failed"
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        assert job["completions"] == job["parallelism"]
        assert job["completionMode"] == "Indexed"


def rule_of(job_set: dict[str, Any], reason: str) -> str:
    """The action of a JobSet whose Job has failed for a reason."""
    for rule in job_set["failurePolicy"]["rules"]:
        if reason in rule.get("onJobFailureReasons", [reason]):
            assert "targetReplicatedJobs" not in rule
            return str(rule["action"])
    return "RestartJobSet"


def job_set_of(text: str) -> dict[str, Any]:
    last = objects_of(text)[-1]
    found: dict[str, Any] = last["spec"]
    return found if last["kind"] == "JobSet" else objects_of(text)[-2]["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", ["jobset_claims", "jobset_shared"])
def test_a_jobset_makes_the_one_pod_again_that_has_failed(name: str) -> None:
    job_set = job_set_of(text_of(name))

    assert rule_of(job_set, "BackoffLimitExceeded") == "RestartJob"
    assert rule_of(job_set, "PodFailurePolicy") == "FailJobSet"
    assert job_set["failurePolicy"]["restartStrategy"] == "Recreate"
    for replicated in job_set["replicatedJobs"]:
        job = replicated["template"]["spec"]
        assert job["completions"] == 1
        assert job["backoffLimit"] == 0


def test_restarts_of_all_pods_together_are_bounded() -> None:
    text = run(
        "--name=a", "--image=a", "--storage=shared", "--nnodes=3", "--spares=2", "--max-restarts=5"
    ).text

    assert job_set_of(text)["failurePolicy"]["maxRestarts"] == 5 * (1 + 3 + 2)


@pytest.mark.parametrize("name", ["jobset_without_restart_job", "trainjob_shared"])
def test_without_restart_job_each_job_makes_its_pod_again_and_nothing_restarts_all(name: str) -> None:
    text = text_of(name)
    job_set = job_set_of(text)

    for reason in ("BackoffLimitExceeded", "PodFailurePolicy", "FailedIndexes", "MaxFailedIndexesExceeded"):
        assert rule_of(job_set, reason) == "FailJobSet"
    host = job_of(text, "host")
    assert host.get("backoffLimitPerIndex", host.get("backoffLimit")) == 6


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("jobset_claims", ["host-0", "host-1"]),
        ("jobset_without_restart_job", ["host"]),
        # Spares may have the ranks of a host that never comes back.
        ("jobset_shared", ["scheduler"]),
        ("trainjob_shared", ["scheduler"]),
    ],
)
def test_a_jobset_has_ended_when_all_that_is_waited_for_has(name: str, who: list[str]) -> None:
    policy = job_set_of(text_of(name))["successPolicy"]

    assert policy == {"operator": "All", "targetReplicatedJobs": who}


def test_a_host_of_an_indexed_job_is_counted_by_its_own_index() -> None:
    host = job_of(text_of("job_object"), "host")

    assert (host["backoffLimitPerIndex"], host["maxFailedIndexes"], host["completions"]) == (6, 1, 3)
    assert "backoffLimit" not in host
    # No spare takes their places.
    for role in ("scheduler", "server"):
        assert job_of(text_of("job_object"), role)["maxFailedIndexes"] == 0
