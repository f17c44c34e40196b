"""What the end of a container means for Kubernetes, from the table of errors. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Any

from recovery.errors import ROWS, Cause, cause_of

CONTAINER = "node"
"""The container whose exit code counts. Kubeflow Trainer looks for this name."""
_SCRIPTS_OWN = 1
_INTERRUPTED, _TERMINATED = 130, 143
_WRONG_WORDS = 2
"""Of a command line that cannot be read, ours (see recovery/cli/main.py) or a script's by argparse."""


class Outcome(str, Enum):
    """What follows."""

    RESTART = "restart"
    """The pod is made again, and it counts."""
    STOP = "do not restart"
    """The same command would end the same way, or there is nothing left to do: the job ends."""
    PREEMPTED = "preempted"
    """It was asked to leave and has left in order: the pod is made again, and it does not count."""


def outcome_of(exit_code: int) -> Outcome:
    """Look up what follows an exit code other than 0."""
    if exit_code in (_INTERRUPTED, _TERMINATED):
        return Outcome.PREEMPTED
    if exit_code == _WRONG_WORDS or cause_of(exit_code) is Cause.PERMANENT:
        return Outcome.STOP
    return Outcome.RESTART


def stopping() -> list[int]:
    """The exit codes after which a pod is not made again."""
    return sorted(code for code in {_WRONG_WORDS, *_codes()} if outcome_of(code) is Outcome.STOP)


def pod_failure_policy() -> dict[str, Any]:
    """The rules in the order in which Kubernetes tries them. What matches none counts, and the pod is made again."""
    return {
        "rules": [
            # A node that is drained, preempted or gone says nothing of the job.
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            _by_code("Ignore", [_INTERRUPTED, _TERMINATED]),
            _by_code("FailJob", stopping()),
        ]
    }


def _by_code(action: str, codes: list[int]) -> dict[str, Any]:
    return {
        "action": action,
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": codes},
    }


def _codes() -> set[int]:
    return {row.exit_code for row in ROWS.values()} - {_SCRIPTS_OWN}
