"""What protects less than it could is said in one line: a network that is trusted, and plain text beyond this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.secured import with_tls
from tests.protocol.conftest import Scheduler

TOKEN = {"MS_JOB_TOKEN": "a-token-of-this-test-0123"}
TRUSTED, PLAIN = "event=network_trusted", "event=channel_not_secured"


def said(directory: Path, environment: dict[str, str]) -> dict[str, int]:
    """How often each line stands in the log of a scheduler that was just started."""
    scheduler = Scheduler(directory, environment)
    scheduler.process.kill()
    scheduler.process.wait(60)
    assert "event=listening" in scheduler.log()
    return {line: scheduler.log().count(line) for line in (TRUSTED, PLAIN)}


@pytest.mark.parametrize(
    ("environment", "trusted", "plain"),
    [
        (TOKEN, 0, 0),
        ({"MS_JOB_TOKEN": "off"}, 1, 0),
        ({"MS_ENABLE_RECOVERY": "0"}, 1, 0),
        ({**TOKEN, "MS_SCHED_HOST": "0.0.0.0"}, 0, 1),
        ({"MS_JOB_TOKEN": "off", "MS_SCHED_HOST": "0.0.0.0"}, 1, 1),
    ],
    ids=["loopback", "off", "no path", "beyond", "off, beyond"],
)
def test_what_is_open_is_said_once(
    tmp_path: Path, environment: dict[str, str], trusted: int, plain: int
) -> None:
    assert said(tmp_path, environment) == {TRUSTED: trusted, PLAIN: plain}


def test_with_tls_nothing_is_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It answers to nobody without a certificate: what is waited for is its line.
    monkeypatch.setattr(Scheduler, "_answers", lambda self: "event=listening" in self.log())
    environment = {**TOKEN, **with_tls(tmp_path), "MS_SCHED_HOST": "0.0.0.0"}

    assert said(tmp_path, environment) == {TRUSTED: 0, PLAIN: 0}
