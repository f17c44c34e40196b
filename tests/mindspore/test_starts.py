"""What reaches MindSpore: its TLS settings, its own variables, its log directory; and how its processes leave it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from pathlib import Path

import psutil
import pytest

from recovery import clock
from recovery.mindspore import control_plane
from recovery.tls import issue
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore import certificates
from tests.mindspore.mindspore_cluster import MindSporeCluster, held
from tests.transport.wire import plain_socket

pytestmark = pytest.mark.mindspore

HANDED_ON = {
    "MS_HCCL_CM_INIT": "1",
    "MS_ENABLE_LCCL": "0",
    "MS_DISABLE_LCCL_KERNELS_LIST": "AllReduce,Barrier",
}


def is_refused_in_plain_text(port: int) -> bool:
    """Does whoever listens there close a connection that begins with HTTP?"""
    with plain_socket(port) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return b"HTTP" not in peer.recv(1_000)
    return True


def test_settings_reach_mindspore_and_its_scheduler_at_every_start(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    given = {
        "config_file_path": str(certificates.write(tmp_path)),
        "enable_ssl": True,
        "client_password": certificates.PASSWORD,
        "server_password": certificates.PASSWORD,
    }
    environment = {
        **HANDED_ON,
        **held(39),
        "JOB_PS": json.dumps(given),
        "GLOG_log_dir": str(tmp_path / "glog"),
        "GLOG_logtostderr": "0",
        "MS_SUBMODULE_LOG_v": "{DISTRIBUTED:1}",
    }
    with MindSporeCluster(tmp_path, workers=2, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(33)
        speaks_tls_only = is_refused_in_plain_text(cluster.port)
        cluster.kill_and_relaunch("worker_0")
        cluster.go_on()
        cluster.wait_end()

        cluster.check_same_as(undisturbed(workers=2))
        for rank in (0, 1):
            seen = json.loads((tmp_path / f"seen_{rank}.json").read_text())
            assert {name: seen[name] for name in HANDED_ON} == HANDED_ON
            assert seen["MS_SCHED_PORT"] == str(cluster.port), "a world's variables stayed behind"
            assert "MS_RESUME_TOKEN" not in seen
        killed, survivor = (
            {path.parent.name for path in (tmp_path / "glog").glob(f"rank_worker_{number}/*/*")}
            for number in (0, 1)
        )
        assert {"incarnation_1", "incarnation_2"} <= killed
        assert "incarnation_2" not in survivor
        # Until then it may name its logs by other links.
        cluster.wait(lambda: not mindspore_schedulers(tmp_path), "end of MindSpore's own schedulers")
        logs = [path for path in (tmp_path / "glog").glob("rank_worker_*/*/*") if not path.is_symlink()]
        said = "".join(path.read_text(errors="replace") for path in logs)
        assert "heartbeat thread is started" in said
        assert "has been unregistered" not in said, (
            "its connection is closed while a thread of MindSpore's reads it"
        )
        assert speaks_tls_only
        assert certificates.PASSWORD not in "".join(cluster.log(name) for name in cluster.processes)


def mindspore_schedulers(directory: Path) -> list[int]:
    """Those that the processes of a test in this directory have started."""
    found = psutil.process_iter(["cwd", "cmdline", "status"])
    return [
        process.pid
        for process in found
        if process.info["cwd"] == str(directory)
        and control_plane.MODULE in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def speaks_tls(address: str) -> bool:
    """Does whoever listens there answer the first message of a handshake as TLS does? It takes nobody without a certificate."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        try:
            with context.wrap_socket(raw):
                return True
        except ssl.SSLError as error:
            return "ALERT" in str(error.reason)
        except OSError:
            return False


def test_the_variables_secure_mindspores_own_connections_too(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    certs = tmp_path / "certs"
    issue.create(certs, nodes=(), hosts=("127.0.0.1",), days=30, now=clock.utc_now())
    environment = {
        **held(19),
        "MS_ENABLE_SSL": "1",
        "MS_CONFIG_FILE_PATH": str(certs / issue.CONFIG),
        "MS_CLIENT_PASSWORD_FILE": str(certs / issue.PASSWORD),
        "MS_SERVER_PASSWORD_FILE": str(certs / issue.PASSWORD),
    }
    with MindSporeCluster(tmp_path, workers=2, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(13)
        formed = re.search(r"event=world_formed .*scheduler=(\S+)", cluster.log("worker_0"))
        assert formed is not None
        is_secured = speaks_tls(formed[1])
        cluster.go_on()
        cluster.wait_end()

        cluster.check_same_as(undisturbed(workers=2))
        assert is_secured
        assert "event=channel_not_secured" not in "".join(cluster.log(name) for name in cluster.processes)


def test_a_wrong_password_is_reported_before_mindspore_sees_it(tmp_path: Path) -> None:
    given = {
        "config_file_path": str(certificates.write(tmp_path)),
        "enable_ssl": True,
        "client_password": "wrong",
        "server_password": "wrong",
    }
    with MindSporeCluster(tmp_path, workers=1, environment={"JOB_PS": json.dumps(given)}) as cluster:
        cluster.start()
        for name in cluster.processes:
            cluster.wait(
                lambda name=name: "P12_PASSWORD_OR_CORRUPT" in cluster.log(name),  # type: ignore[misc]  # bound now
                "the reason",
            )
