"""A whole job over TLS, with real processes: launcher, scheduler, workers and commands, one of them killed; and no secret left anywhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recovery.store import job_token_file
from tests.cluster.harness import free_port
from tests.cluster.secured import files_with
from tests.cluster.small_job import result_of
from tests.pace import wait_for

pytestmark = pytest.mark.cluster

WAIT_S = 120.0
RECOVERY = [sys.executable, "-m", "recovery"]


class Job:
    """Two workers below `recovery msrun`, in a directory of their own."""

    def __init__(self, place: Path) -> None:
        self.place, self.port = place, free_port()
        shutil.copy(Path(__file__).with_name("small_job.py"), place / "job.py")
        made = subprocess.run(
            [*RECOVERY, "certs", "init", str(place / "certs"), "--days", "30"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        self.password = (place / "certs" / "password").read_text().strip()
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COVERAGE_"))
        }
        self.environment = {
            **clean,
            "MS_ENABLE_RECOVERY": "1",
            "MS_RECOVERY_PATH": "recovery-state",
            "JOB_HELD_STEP": "30",
        }
        certs = "certs/"
        self.variables = {
            "MS_ENABLE_SSL": "1",
            "MS_CONFIG_FILE_PATH": certs + "config.json",
            "MS_CLIENT_PASSWORD_FILE": certs + "password",
        }
        flags = [
            "--worker_num=2",
            "--local_worker_num=2",
            f"--master_port={self.port}",
            "--join=True",
            "--log_dir=logs",
            "--enable_ssl=True",
            "--config_file_path=certs/config.json",
            "--client_password_file=certs/password",
            "--server_password_file=certs/password",
        ]
        with (place / "out.txt").open("wb") as out:
            self.launcher = subprocess.Popen(
                [*RECOVERY, "msrun", *flags, "job.py"],
                cwd=place,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def ask(self, *words: str, tls: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*RECOVERY, *words],
            cwd=self.place,
            env={**self.environment, **(self.variables if tls else {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )

    def status(self, *, tls: bool = True) -> subprocess.CompletedProcess[str]:
        return self.ask("status", f"--connect=127.0.0.1:{self.port}", tls=tls)

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.launcher.pid).children(recursive=True)

    def end(self) -> None:
        left = self.processes() if self.launcher.poll() is None else []
        self.launcher.kill()
        self.launcher.wait(WAIT_S)
        for process in left:
            try:
                process.kill()
                process.wait(WAIT_S)
            except psutil.NoSuchProcess:
                continue


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_a_job_runs_over_tls_and_recovers_and_leaves_no_secret(job: Job) -> None:
    wait_for(lambda: "running" in job.status().stdout, "running job")
    plain = job.status(tls=False)
    assert plain.returncode != 0
    assert "if it uses TLS, this process must too" in plain.stderr, plain.stderr
    workers = [one for one in job.processes() if any("job.py" in word for word in one.cmdline())]
    seen = "".join(" ".join(one.cmdline()) + str(one.environ()) for one in job.processes())
    os.kill(workers[-1].pid, signal.SIGKILL)
    (job.place / "go_on").touch()

    assert job.launcher.wait(WAIT_S) == 0, (job.place / "out.txt").read_text()
    assert [(job.place / f"result_{rank}").read_text() for rank in (0, 1)] == [result_of(0), result_of(1)]
    assert list(job.place.glob("logs/incident-*.json"))
    exported = job.ask("export", "recovery-state", "export.json")
    assert exported.returncode == 0, exported.stderr
    token = (job.place / "recovery-state" / job_token_file.NAME).read_text().strip()
    for secret in (job.password, token):
        assert secret not in seen
        assert secret not in exported.stdout + exported.stderr
        assert files_with(job.place, secret) == []


def test_a_launcher_names_what_is_wrong_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *RECOVERY,
            "msrun",
            "--worker_num=1",
            "--enable_ssl=True",
            "--config_file_path=nowhere.json",
            "x.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )

    assert done.returncode != 0
    assert list(tmp_path.glob("**/scheduler*")) == []
