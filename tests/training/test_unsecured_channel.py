"""A script that asks its framework for TLS is warned, also before any log is set up, that the engine's own port is not covered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = (
    "from recovery.training import unsecured_channel; unsecured_channel.check('enable_ssl=True', 'MindSpore')"
)


def _run(host: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": "1",
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": "9999",
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, **variables},
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_one_host_a_warning_names_setting_port_and_what_is_open(host: str) -> None:
    done = _run(host)
    assert done.returncode == 0, done.stderr
    for text in ("event=channel_not_secured", "enable_ssl=True", "MS_SCHED_PORT", "plain text"):
        assert text in done.stderr


@pytest.mark.parametrize("host", ["10.1.2.3", "scheduler.example"])
def test_a_channel_that_would_cross_a_network_in_plain_text_is_refused(host: str) -> None:
    done = _run(host)
    assert done.returncode != 0
    for text in ("USAGE: enable_ssl=True", f"MS_SCHED_HOST={host}", "plain text", "127.0.0.1"):
        assert text in done.stderr
