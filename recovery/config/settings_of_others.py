"""Rows of the table for variables that mean nothing here: those of the frameworks, and those that MindSpore's documents name besides."""

from __future__ import annotations

import msgspec

from recovery.config.setting import Fate, Setting, SettingKind


def _passed(name: str, meaning: str) -> Setting:
    rule = "may be anything; the framework reads it, we leave it untouched"
    return Setting(name=name, kind=SettingKind.ANY, meaning=meaning, rule=rule, fate=Fate.PASSED_THROUGH)


def _accepted(name: str, meaning: str, because: str) -> Setting:
    passed, rule = _passed(name, meaning), "may be anything; it has no effect"
    return msgspec.structs.replace(passed, rule=rule, fate=Fate.ACCEPTED, because=because)


FRAMEWORK = (
    _passed("MS_HCCL_CM_INIT", "Ascend: HCCL forms its groups without a rank table."),
    _passed("MS_ENABLE_LCCL", "Ascend: the LCCL library within one machine."),
    _passed("MS_DISABLE_LCCL_KERNELS_LIST", "Ascend: operators that LCCL shall not take."),
)

WITHOUT_EFFECT = (
    _accepted(
        "MS_CLUSTER_RETRY_NUM",
        "Number of networking tries.",
        "waits are bounded by time here, not by a count: MS_TOPO_TIMEOUT",
    ),
    _accepted("MS_RECOVERY_INTERVAL", "Seconds between recoveries.", "upstream reads it and never uses it"),
    _accepted(
        "MS_SCHED_MANAGE_PORT",
        "Port of the old scheduler's HTTP interface.",
        "MS_SCHED_PORT serves workers and inspection alike",
    ),
    _accepted("MS_COMM_TYPE", "Transport of the old parameter server.", "there is one transport"),
    _accepted(
        "MS_INTERFACE",
        "Network interface of the old parameter server.",
        "the address decides: MS_SCHED_HOST and MS_WORKER_IP",
    ),
)
