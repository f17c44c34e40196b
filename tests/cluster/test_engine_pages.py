"""The pages about engines, tried as they stand: their line on the real engine, a host lost, their output, and the bits of an undisturbed job."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import page_place
from tests.cluster.page_place import check_bits, has_saved, of_a_user, text
from tests.faults.slurm import slurm
from tests.pace import HANG_S, wait_for
from tests.shown import block, check_shown

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    page_place.prepare(tmp_path)
    return tmp_path


def test_slurms_line_and_its_output(place: Path) -> None:
    line = block("docs/howto/slurm.md", "recovery slurm ").replace("\\\n", " ")
    with slurm(3) as cluster:
        cluster.environment |= {**of_a_user(), "SLURM_CONF": cluster.environment["SLURM_CONF"]}
        assert cluster.ask(*shlex.split(line), cwd=place) == "Submitted batch job 1\n"
        out = place / "slurm-1.out"
        wait_for(lambda: has_saved(place, 8), "first checkpoint of all", lambda: text(out))
        wait_for(lambda: text(out).count("event=waiting for a rank to take over") >= 4, "four standbys")
        cluster.kill_node(1)
        page_place.go_on(place)
        wait_for(
            lambda: cluster.job(1)["JobState"] not in ("RUNNING", "COMPLETING"), "end", lambda: text(out)
        )
        assert cluster.job(1)["JobState"] == "COMPLETED", text(out)
    check_shown(block("docs/howto/slurm.md", "$ cat slurm-1.out"), text(out))
    check_bits(place, 8, "--lr", "0.1")


def test_a_host_that_is_taken_away_and_what_its_page_shows(place: Path) -> None:
    """On the page the file is `/run/preempted`."""
    notice = place / "preempted"
    line = block("docs/howto/preemption.md", "export MS_ENABLE_RECOVERY").replace(
        "/run/preempted", str(notice)
    )
    out = place / "out"
    with _started(line, place, out) as launcher:
        wait_for(lambda: has_saved(place, 4), "first checkpoint of all", lambda: text(out))
        notice.write_text("30\n")
        wait_for(lambda: "every rank saves a step first" in text(out), "notice", lambda: text(out))
        page_place.go_on(place)
        assert launcher.wait(HANG_S) == 143, text(out)
    notice.unlink()
    with _started(line, place, out) as launcher:
        assert launcher.wait(HANG_S) == 0, text(out)
    shown = block("docs/howto/preemption.md", "$ echo 30").replace("\n143\n", "\n")
    check_shown(shown, text(out))
    check_bits(place, 4)


@contextlib.contextmanager
def _started(line: str, place: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    with out.open("ab") as said:
        launcher = subprocess.Popen(
            ("bash", "-c", line),
            cwd=place,
            env=of_a_user(),
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield launcher
    finally:
        if launcher.poll() is None:
            launcher.terminate()
        launcher.wait(HANG_S)
