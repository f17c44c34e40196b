"""What a right environment becomes, and the rules that join several variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recovery import config
from recovery.config import SettingsRole
from recovery.core.rules import Rules
from tests.config.environments import SCHEDULER, WORKER, refusal, resolved


def _without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_the_defaults_are_those_of_the_rules() -> None:
    assert config.load(WORKER).rules == Rules(worker_count=4)


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("MS_SCHED", SettingsRole.SCHEDULER),
        ("MS_WORKER", SettingsRole.WORKER),
        ("MS_PSERVER", SettingsRole.SERVER),
        ("MS_SERVER", SettingsRole.SERVER),
    ],
)
def test_each_spelling_of_a_role_is_taken(text: str, role: SettingsRole) -> None:
    assert config.load({**WORKER, "MS_ROLE": text}).role is role


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)

    assert config.load().node_id == "worker_0"


@pytest.mark.parametrize("value", ["worker_0", "0", "", "not / an id", "\n"])
def test_the_schedulers_own_node_id_never_matters(value: str) -> None:
    assert config.load({**SCHEDULER, "MS_NODE_ID": value}).node_id is None
    assert config.load(_without(SCHEDULER, "MS_NODE_ID")).node_id is None


@pytest.mark.parametrize("role", ["MS_WORKER", "MS_PSERVER"])
def test_a_node_id_is_required_only_when_recovery_is_on(role: str) -> None:
    environ = _without({**WORKER, "MS_ROLE": role}, "MS_NODE_ID")

    assert refusal(environ).code == "SETTING_MISSING"
    assert config.load({**environ, "MS_ENABLE_RECOVERY": "0"}).node_id is None


def test_a_recovery_path_is_required_only_when_recovery_is_on() -> None:
    environ = _without(WORKER, "MS_RECOVERY_PATH")

    assert refusal(environ).code == "SETTING_MISSING"
    settings = config.load(_without(environ, "MS_ENABLE_RECOVERY"))
    assert settings.recovery_path is None
    assert not settings.rules.recovery_enabled


def test_nothing_is_persisted_without_recovery_even_where_a_path_is_named() -> None:
    assert config.load({**WORKER, "MS_ENABLE_RECOVERY": "0"}).recovery_path is None


def test_a_relative_path_is_resolved_once_against_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config.load({**WORKER, "MS_RECOVERY_PATH": "./recovery/", "MS_STEP_LOG": "steps.log"})

    assert settings.recovery_path == resolved("recovery") == tmp_path / "recovery"
    assert settings.step_log == tmp_path / "steps.log"
    assert not (tmp_path / "recovery").exists()


def test_a_relative_path_without_a_working_directory_is_refused(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd())\n"
        "from recovery import config, errors\n"
        "try: config.load()\n"
        "except errors.SettingError as error: print(error)"
    )
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, **WORKER, "MS_RECOVERY_PATH": "./recovery", "PYTHONPATH": root}
    environ.pop("COVERAGE_PROCESS_START", None)
    environ.pop("COVERAGE_PROCESS_CONFIG", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=environ, capture_output=True, text=True, check=False
    )

    assert "SETTING_RANGE: MS_RECOVERY_PATH='./recovery'" in done.stdout, done.stderr
    assert "the working directory cannot be read" in done.stdout


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("node-1.cluster.local.", "node-1.cluster.local."),
        ("my_service", "my_service"),
    ],
)
def test_hosts_are_taken_with_or_without_brackets(text: str, host: str) -> None:
    assert config.load({**WORKER, "MS_SCHED_HOST": text}).sched_host == host


def test_port_zero_is_for_the_scheduler_alone() -> None:
    assert config.load({**SCHEDULER, "MS_SCHED_PORT": "0"}).sched_port == 0
    assert refusal({**WORKER, "MS_SCHED_PORT": "0"}).code == "SETTING_RANGE"
    assert refusal({**SCHEDULER, "MS_SCHED_PORT": "1023"}).code == "SETTING_RANGE"


def test_negative_timeouts_mean_for_ever() -> None:
    rules = config.load({**WORKER, "MS_TOPO_TIMEOUT": "-1", "MS_NODE_TIMEOUT": "-" + "9" * 5_000}).rules

    assert rules.topology_timeout_ms is None
    assert not rules.heartbeat_enabled


def test_heartbeats_can_be_disabled() -> None:
    assert not config.load({**WORKER, "MS_DISABLE_HEARTBEAT": "1"}).rules.heartbeat_enabled


@pytest.mark.parametrize(
    ("text", "value_ms"), [("0", 0), ("0.3", 300), ("1.005", 1_005), ("29.999", 29_999), ("007", 7_000)]
)
def test_decimal_seconds_become_exact_milliseconds(text: str, value_ms: int) -> None:
    assert config.load({**WORKER, "MS_REJOIN_WINDOW": text}).rules.rejoin_window_ms == value_ms


def test_0_and_1_become_switches() -> None:
    settings = config.load(
        {**WORKER, "MS_REJOIN": "fail", "MS_ALLOW_RESTART_FROM_ZERO": "1", "MS_STORE_WITHOUT_WAL": "1"}
    )

    assert not settings.rules.rejoin_wait
    assert settings.rules.allow_restart_from_zero
    assert settings.store_without_wal


def test_a_lower_bound_above_the_upper_is_lowered_with_a_warning() -> None:
    settings = config.load({**WORKER, "MS_RETRY_INTERVAL_LOWER": "7"})

    assert (settings.rules.heartbeat_ms_min, settings.rules.heartbeat_ms_max) == (5_000, 5_000)
    assert len(settings.warnings) == 1
    assert "MS_RETRY_INTERVAL_LOWER=7" in settings.warnings[0]


def test_an_upper_bound_below_the_default_lower_takes_it_along() -> None:
    settings = config.load({**WORKER, "MS_RETRY_INTERVAL_UPPER": "2"})

    assert (settings.rules.heartbeat_ms_min, settings.rules.heartbeat_ms_max) == (2_000, 2_000)
    assert settings.warnings == ()


@pytest.mark.parametrize("short", ["MS_NODE_TIMEOUT", "MS_RECEIVE_MSG_TIMEOUT"])
def test_unset_heartbeats_fit_several_times_into_a_short_lease_or_wait(short: str) -> None:
    rules = config.load({**WORKER, short: "1"}).rules

    assert 0 < rules.heartbeat_ms_min <= rules.heartbeat_ms_max <= 1_000 // 3


@pytest.mark.parametrize("short", ["MS_NODE_TIMEOUT", "MS_RECEIVE_MSG_TIMEOUT"])
def test_heartbeats_rarer_than_the_lease_or_the_wait_are_a_conflict(short: str) -> None:
    error = refusal({**WORKER, short: "4", "MS_RETRY_INTERVAL_UPPER": "4"})

    assert error.code == "SETTING_CONFLICT"
    assert f"{short} (4)" in str(error)
    assert "MS_RETRY_INTERVAL_UPPER='4'" in str(error)


def test_without_a_lease_only_the_wait_bounds_the_heartbeats() -> None:
    rules = config.load({**WORKER, "MS_NODE_TIMEOUT": "-1", "MS_RETRY_INTERVAL_UPPER": "14"}).rules
    error = refusal({**WORKER, "MS_NODE_TIMEOUT": "-1", "MS_RETRY_INTERVAL_UPPER": "15"})

    assert rules.heartbeat_ms_max == 14_000
    assert "MS_NODE_TIMEOUT (no limit)" in str(error)


def test_every_source_distinguishes_environment_and_default() -> None:
    sources = {source.name: source for source in config.load(WORKER).sources}

    assert (sources["MS_WORKER_NUM"].value, sources["MS_WORKER_NUM"].source) == ("4", "environment")
    assert (sources["MS_NODE_TIMEOUT"].value, sources["MS_NODE_TIMEOUT"].source) == ("30", "default")
