"""Who asks a framework for TLS hears, also before any log is set up, that the engine's own port is not covered."""

from __future__ import annotations

import subprocess
import sys


def test_the_warning_names_setting_port_and_next_step_also_before_a_log_is_set_up() -> None:
    program = (
        "from recovery.training import plain_channel; plain_channel.warn_of('enable_ssl=True', 'MindSpore')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for word in ("event=channel_not_secured", "enable_ssl=True", "MS_SCHED_PORT", "plain text", "trust"):
        assert word in done.stderr
