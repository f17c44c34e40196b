"""A scheduler that listens at 0.0.0.0, dialled by a name that it does not know, as by that of a Service of Kubernetes. Needs root."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.store.job_token_file import shared
from recovery.transport.job_token import CHALLENGE_PATH, SCHEME
from tests.cluster.inspected import run
from tests.cluster.small_cluster import SmallCluster
from tests.needs import needs_root, needs_tool

pytestmark = [pytest.mark.cluster, pytest.mark.root]

SERVICE = "trainer-scheduler"


def knowing_the_service(directory: Path) -> tuple[str, ...]:
    """What starts a command, by exec, where that name leads to this machine."""
    needs_root()
    (directory / "hosts").write_text(f"127.0.0.1 localhost {SERVICE}\n")
    script = f'mount --bind {directory}/hosts /etc/hosts && exec "$@"'
    return (needs_tool("unshare", "util-linux"), "--mount", "sh", "-c", script, "sh")


def asked(port: int, route: str) -> tuple[int, str]:
    """What is answered to a request for the Service that proves nothing: the status, and what it is to be proven by."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{route}", headers={"Host": f"{SERVICE}:{port}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("WWW-Authenticate", "")


def test_workers_and_people_reach_it_by_the_name_of_the_service(tmp_path: Path) -> None:
    by_name = knowing_the_service(tmp_path)
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "20"}) as cluster:
        for name in cluster.names:
            cluster.started_by[name] = by_name
            cluster.launch(name, MS_SCHED_HOST=SERVICE)
        cluster.launch("sched", MS_SCHED_HOST="0.0.0.0")
        cluster.wait_step(12)
        assert asked(cluster.port, "/status") == (401, SCHEME), "the token is asked for, not the name"
        assert asked(cluster.port, CHALLENGE_PATH) == (200, "")
        seen = run(
            "status",
            f"--connect={SERVICE}:{cluster.port}",
            "--json",
            environment={"MS_JOB_TOKEN": shared(tmp_path / "recovery")},
            under=by_name,
        )
        assert seen.returncode == 0, seen.stderr
        assert json.loads(seen.stdout)["state"] == "running"
        # They dial it again.
        cluster.kill("sched")
        cluster.launch("sched", MS_SCHED_HOST="0.0.0.0")
        cluster.wait_event(EventKind.NODE_RESUMED, count=2)
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
