"""What the doctor says of this machine, and of devices, whose tool is replaced by a script."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import pytest

from recovery import file_systems
from recovery.config.settings import memory_base
from recovery.report.doctor import examine
from recovery.report.doctor_check import Check
from recovery.store import job_token_file
from recovery.tls.side import Side
from tests.needs import needs_package
from tests.small_disk import small_disk
from tests.tls.made import PASSWORD
from tests.tls.test_contexts import World

WORKER = {
    "MS_ROLE": "MS_WORKER",
    "MS_NODE_ID": "worker_0",
    "MS_WORKER_NUM": "2",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_ENABLE_RECOVERY": "1",
    "PATH": "",
}


def checks(tmp_path: Path, **changes: str) -> dict[str, Check]:
    environment = {**WORKER, "MS_SCHED_PORT": "8118", "MS_RECOVERY_PATH": str(tmp_path / "rec"), **changes}
    return {check.name: check for check in examine(environment)}


def test_a_worker_needs_a_scheduler_that_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        assert checks(tmp_path, MS_SCHED_PORT=port)["port"].ok
        as_scheduler = checks(tmp_path, MS_SCHED_PORT=port, MS_ROLE="MS_SCHED")["port"]
        assert not as_scheduler.ok
        assert "Address already in use" in as_scheduler.found
    absent = checks(tmp_path, MS_SCHED_PORT=port)["port"]
    assert not absent.ok
    assert absent.next_step.startswith("Start the scheduler")
    assert checks(tmp_path, MS_SCHED_PORT=port, MS_ROLE="MS_SCHED")["port"].ok


def test_without_a_role_this_host_is_looked_at_as_recovery_run_begins_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {check.name: check for check in examine({"PATH": ""})}
    assert found["variables"].ok
    assert found["variables"].found.endswith("of this host, as `recovery run` has it: MS_ROLE is not set")
    assert {"port", "job token"} <= set(found)


def test_wrong_variables_come_first(tmp_path: Path) -> None:
    found = checks(tmp_path, MS_WORKER_NUM="none")
    assert not found["variables"].ok
    assert found["variables"].found.startswith("SETTING_TYPE: MS_WORKER_NUM='none'")
    assert "port" not in found


@pytest.mark.parametrize(
    ("kind", "is_local"),
    [
        *((kind, True) for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs")),
        *((kind, False) for kind in ("nfs4", "cifs", "lustre", "beegfs", "ceph", "fuse.ceph-fuse")),
        *(
            (kind, False)
            for kind in ("fuse.glusterfs", "fuse.juicefs", "gpfs", "fuse.s3fs", "virtiofs", "fuse")
        ),
    ],
)
def test_a_file_system_that_hosts_share_does_not_suit_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_local: bool
) -> None:
    monkeypatch.setattr(file_systems, "kind_of", lambda path: kind)
    found = checks(tmp_path)["file system"]
    assert (found.ok, bool(found.next_step)) == (is_local, not is_local)
    assert found.found.startswith(kind)


def test_the_kind_of_a_file_system_is_that_of_the_kernels_list(tmp_path: Path) -> None:
    place = tmp_path / "of two words"
    place.mkdir()
    escaped = str(place).replace(" ", "\\040")
    mounts = tmp_path / "mounts"
    mounts.write_bytes(
        b"disk / ext4 rw 0 0\n"
        b"old \xff fuse rw 0 0\n"
        + f"first {escaped} xfs rw 0 0\nserver:/export {escaped} nfs4 rw 0 0\n".encode()
    )
    assert file_systems.kind_of(place / "below", mounts) == "nfs4", "what is mounted over the other"
    assert file_systems.kind_of(tmp_path, mounts) == "ext4"
    assert file_systems.kind_of(tmp_path, tmp_path / "none") == ""
    assert file_systems.kind_of(Path("/proc/self")) == "proc"


def test_the_recovery_path_its_disk_and_its_clock(tmp_path: Path) -> None:
    found = checks(tmp_path)
    assert found["recovery path"].found == f"{tmp_path} can be written ({tmp_path / 'rec'} will be made)"
    assert found["disk"].ok
    assert re.search(r" GB free, [1-9][0-9,]* of [0-9,]* inodes", found["disk"].found)
    assert found["links, modes, names"].ok
    assert found["links, modes, names"].found.endswith(
        ": its file system has hard links, modes and durable names"
    )
    assert found["clock"].ok
    assert found["file system"].ok
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_disk_with_few_inodes_left_is_said(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "nr_inodes=900") as place:
        found = checks(place)["disk"]
    assert not found.ok
    assert "of 900 inodes" in found.found
    assert found.next_step.startswith("Remove files there")


def test_a_file_where_the_recovery_path_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = checks(tmp_path, MS_RECOVERY_PATH=str(tmp_path / "file" / "rec"))["recovery path"]
    assert not found.ok
    assert found.next_step


def test_frameworks_are_named_with_their_versions(tmp_path: Path) -> None:
    assert checks(tmp_path)["frameworks"].ok


@pytest.mark.parametrize(
    ("health", "detect", "good"),
    [
        ("net health status: Success", "netdetect address: 192.168.1.1", (True, True)),
        ("net health status: Fault", "netdetect address: 0.0.0.0", (False, False)),
    ],
)
def test_devices_on_ascend_hosts(tmp_path: Path, health: str, detect: str, good: tuple[bool, bool]) -> None:
    tool = tmp_path / "hccn_tool"
    tool.write_text(f'#!/bin/sh\ncase "$3" in -net_health) echo "{health}";; *) echo "{detect}";; esac\n')
    tool.chmod(0o755)
    found = checks(tmp_path, PATH=f"{tmp_path}{os.pathsep}/bin", DEVICE_ID="3")
    looked = (found["device 3 net health"], found["device 3 netdetect"])
    assert tuple(check.ok for check in looked) == good
    assert looked[0].found == health
    assert all(bool(check.next_step) is not check.ok for check in looked)


def test_no_tool_no_devices(tmp_path: Path) -> None:
    assert not [name for name in checks(tmp_path) if name.startswith("device")]


def test_the_certificates_of_the_role_are_looked_at(tmp_path: Path) -> None:
    world = World(tmp_path)
    place = world.places[Side.CLIENT]
    password = str(place.put("password", PASSWORD, 0o600))
    on = {"MS_ENABLE_SSL": "1", "MS_CONFIG_FILE_PATH": str(place.config), "MS_CLIENT_PASSWORD_FILE": password}

    found = checks(tmp_path, **on)
    assert found["secure channel"].ok
    assert "CN=client, 1 authorities" in found["secure channel"].found.replace(")", "")
    assert not found["certificates"].ok
    assert "expires in 29 days" in found["certificates"].found
    place.put("client.p12", b"x", 0o600)
    broken = checks(tmp_path, **on)["secure channel"]
    assert not broken.ok
    assert broken.found.startswith("P12_FORMAT")
    assert PASSWORD.decode() not in str(found) + str(broken)


def test_plain_text_beyond_loopback_is_said(tmp_path: Path) -> None:
    assert "secure channel" not in checks(tmp_path)
    said = checks(tmp_path, MS_SCHED_HOST="localhost.localdomain", MS_ROLE="MS_SCHED").get("secure channel")
    assert said is not None
    assert "plain text" in said.found


def test_the_file_of_the_token_is_looked_at_and_its_text_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "recovery"
    on = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(path)}

    assert (
        checks(tmp_path, **on)["job token"].found == f"none yet: the first process makes {path / 'job_token'}"
    )
    token = job_token_file.shared(path)
    there = checks(tmp_path, **on)["job token"]
    assert (there.ok, there.found) == (True, f"in {path / 'job_token'}")
    (path / "job_token").chmod(0o640)
    open_to_others = checks(tmp_path, **on)["job token"]
    assert not open_to_others.ok
    assert "0640" in open_to_others.found
    assert token not in there.found + open_to_others.found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"MS_JOB_TOKEN": "off"}, "off: the network is trusted"),
        ({"MS_JOB_TOKEN": "a-token-of-16-and-more"}, "of MS_JOB_TOKEN"),
        ({"MS_ENABLE_RECOVERY": "0"}, "none, since there is no recovery path: the network is trusted"),
    ],
)
def test_where_the_token_comes_from_is_said(tmp_path: Path, given: dict[str, str], found: str) -> None:
    assert checks(tmp_path, **given)["job token"].found == found


def test_memory_for_checkpoints_is_looked_at_where_it_is_asked_for(tmp_path: Path) -> None:
    assert "memory" not in checks(tmp_path)
    check = checks(tmp_path, MS_MEMORY_CHECKPOINT_STEPS="5")["memory"]
    assert check.ok, check
    assert f"GB free in {memory_base({})}" in check.found
    check = checks(tmp_path, MS_MEMORY_CHECKPOINT_STEPS="5", MS_MEMORY_CHECKPOINT_PATH="/proc")["memory"]
    assert (check.ok, check.found) == (False, "/proc is proc, not in memory")
    assert "MS_MEMORY_CHECKPOINT_PATH" in check.next_step


def test_the_checkpoint_store_must_create_an_object_only_once(tmp_path: Path) -> None:
    needs_package("fsspec")
    assert "checkpoint store" not in checks(tmp_path)
    check = checks(tmp_path, MS_CHECKPOINT_STORE=f"file://{tmp_path}/objects")["checkpoint store"]
    assert (check.ok, check.next_step) == (True, "")
    assert list((tmp_path / "objects").iterdir()) == [], "what it has tried is removed"
    check = checks(tmp_path, MS_CHECKPOINT_STORE="nonsense://bucket")["checkpoint store"]
    assert not check.ok
    assert "recovery-engine[objects]" in check.next_step
    # Nothing trains here, and no disk is full.
    assert check.found.startswith("CHECKPOINT_WRITE: nonsense://bucket was not saved (")
    assert check.found.endswith(").")


def test_a_directory_in_which_no_file_can_be_made_fails_its_own_check_alone(tmp_path: Path) -> None:
    found = checks(tmp_path, MS_RECOVERY_PATH="/proc/recovery")
    # To root the directory looks as if it could be written.
    failed = found.get("clock", found["recovery path"])
    assert not failed.ok
    assert failed.next_step
    assert {"port", "file system", "disk", "frameworks"} <= set(found)


def test_a_path_that_cannot_be_asked_for_is_said_and_the_nearest_one_is_looked_at(tmp_path: Path) -> None:
    found = checks(tmp_path, MS_RECOVERY_PATH=str(tmp_path / ("x" * 300) / "rec"))
    assert not found["recovery path"].ok
    assert "File name too long" in found["recovery path"].found
    assert found["disk"].ok
    assert found["file system"].found.endswith(f" at {tmp_path}")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nprintf 'Fault \\377'\n", "Fault \N{REPLACEMENT CHARACTER}"),
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/none/interpreter\n", "No such file or directory"),
    ],
)
def test_a_tool_that_says_no_text_or_does_not_start_is_a_finding(
    tmp_path: Path, script: str, said: str
) -> None:
    tool = tmp_path / "hccn_tool"
    tool.write_text(script)
    tool.chmod(0o755)
    found = checks(tmp_path, PATH=str(tmp_path))
    for name in ("device 0 net health", "device 0 netdetect"):
        assert not found[name].ok
        assert said in found[name].found


def test_a_driver_that_raises_fails_its_own_check_alone(tmp_path: Path) -> None:
    needs_package("fsspec")
    import fsspec

    class Broken(fsspec.AbstractFileSystem):  # type: ignore[misc]
        def __init__(self, *arguments: object, **options: object) -> None:
            raise KeyError("region")

    fsspec.register_implementation("broken", Broken, clobber=True)
    found = checks(tmp_path, MS_CHECKPOINT_STORE="broken://bucket")
    assert not found["checkpoint store"].ok
    assert "region" in found["checkpoint store"].found
    assert found["frameworks"].ok


def test_what_a_file_system_lacks_matters_in_the_recovery_path_and_is_said_of_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    environment = {**WORKER, "MS_SCHED_PORT": "8118", "MS_RECOVERY_PATH": str(tmp_path / "rec")}
    found = list(examine(environment, [tmp_path / "saved", Path("/proc/none")]))
    of_path = [check for check in found if check.name == "links, modes, names"]
    assert [(check.ok, check.found) for check in of_path] == [
        (False, f"{tmp_path}: its file system has no hard links")
    ]
    of_checkpoints = [check for check in found if check.name == "checkpoint path"]
    assert of_checkpoints[0].ok
    assert of_checkpoints[0].found == f"{tmp_path}: its file system has no hard links"
    assert not of_checkpoints[1].ok
    assert {check.found for check in of_checkpoints[1:]} & {"/proc cannot be written"} or os.geteuid() == 0
