"""Amounts as Kubernetes writes them, and what a pod of each role is given. Pure."""

from __future__ import annotations

import re

from recovery.kubernetes.environment import Role
from recovery.kubernetes.job import KubernetesJob

_AMOUNT = re.compile(r"(\d+)(?:\.(\d+))?(\D*)\Z")
_UNITS: dict[str, int] = {
    "": 1_000,
    "m": 1,
    **{unit: 1_000 ** (power + 1) for power, unit in enumerate("kMGTP", start=1)},
    **{f"{unit}i": 1_000 * 1_024**power for power, unit in enumerate("KMGTP", start=1)},
}
_SCHEDULER = {"cpu": "500m", "memory": "1Gi"}
"""It trains nothing, and has 50 MB of its own (docs/costs.md)."""


def thousandths(text: str) -> int:
    """An amount in thousandths of its unit."""
    found = _AMOUNT.match(text)
    assert found is not None, "render_flags.py has read it"
    whole, decimals, unit = found.groups(default="")
    parts: int = 10 ** len(decimals)
    return int(whole + decimals) * _UNITS[unit] // parts


def of_pod(job: KubernetesJob, role: Role) -> dict[str, str]:
    """What a pod is given, and at most."""
    if role is Role.SCHEDULER:
        return _SCHEDULER
    if role is Role.SERVER:
        return {}
    amounts = {"cpu": job.cpus, "memory": job.memory, job.gpu_resource: str(job.gpus or "")}
    return {name: amount for name, amount in amounts.items() if amount}
