"""The JSON file of --bind_numa: what each process gets, what is passed to the framework, and every mistake by its name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from recovery.errors import RecoveryError
from tests.launch.test_placement import placed
from tests.launch.typed import job


def file_of(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "binding.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_processors_are_bound_by_the_launcher_and_memory_by_numactl(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        {
            "bind_config": {"bind_cpu_mode": "cpu", "bind_memory_mode": "numa"},
            "bind_cpu": {"device0": {"main": "0-1", "acl": "2"}, "device1": {"acl": "3"}, "scheduler": None},
            "bind_memory": {"device0": 1, "device1": "0,1"},
        },
    )

    scheduler, first, second = placed("--worker_num=2", f"--bind_numa={path}")

    assert [one.cpus for one in (scheduler, first, second)] == [(), (0, 1), ()]
    assert first.command[:2] == ("numactl", "--membind=1")
    assert second.command[:2] == ("numactl", "--membind=0,1")
    assert "numactl" not in scheduler.command
    for one in (scheduler, first, second):
        assert one.variables["MSRUN_BIND_FILE"] == str(path)
        assert one.variables["MSRUN_BIND_FILE_HASH"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_nodes_of_processors_and_of_memory_may_differ(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        {
            "bind_config": {"bind_cpu_mode": "NUMA", "bind_memory_mode": "numa"},
            "bind_cpu": {"device0": "0 , 1", "device1": 0},
            "bind_memory": {"device0": 1},
        },
    )

    _, first, second = placed("--worker_num=2", f"--bind_numa={path}")

    assert first.command[:3] == ("numactl", "--membind=1", "--cpunodebind=0,1")
    assert second.command[:2] == ("numactl", "--cpunodebind=0")
    assert first.cpus == ()


def test_processors_of_the_file_go_before_those_of_bind_core(tmp_path: Path) -> None:
    modes = {"bind_cpu_mode": "cpu"}
    path = file_of(tmp_path, {"bind_config": modes, "bind_cpu": {"device0": {"main": "3"}}})

    _, first, second = placed("--worker_num=2", f"--bind_numa={path}", "--bind_core=True")

    assert (first.cpus, second.cpus) == ((3,), (2, 3))
    assert "numactl" not in first.command


def test_without_modes_nothing_is_bound(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"bind_cpu": {"device0": {"main": "0"}}, "bind_memory": {"device0": 0}})

    _, worker = placed("--worker_num=1", f"--bind_numa={path}")

    assert (worker.cpus, worker.command[0]) == ((), "/py")


@pytest.mark.parametrize(
    ("cpu", "memory", "says"),
    [
        ({"device0": {"main": "0-9"}}, {}, "processor 4 is not among this host's"),
        ({}, {"device0": 7}, "this host's memory nodes are 0,1"),
    ],
)
def test_what_this_host_does_not_have_is_named(
    tmp_path: Path, cpu: dict[str, Any], memory: dict[str, Any], says: str
) -> None:
    modes = {"bind_cpu_mode": "cpu", "bind_memory_mode": "numa"}
    path = file_of(tmp_path, {"bind_config": modes, "bind_cpu": cpu, "bind_memory": memory})

    with pytest.raises(RecoveryError, match=says) as caught:
        placed("--worker_num=1", f"--bind_numa={path}")

    assert "--bind_numa" in str(caught.value)


CPU = {"bind_cpu_mode": "cpu"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "must be a JSON file that can be read (Expecting property name"),
        ("[]", "the file'"),
        ({"bind_config": "cpu"}, "bind_config': must be a JSON object"),
        ({"bind_config": {"bind_cpu_mode": "core"}}, "bind_cpu_mode: core': must be one of cpu, numa, none"),
        ({"bind_config": {"bind_memory_mode": "cpu"}}, "bind_memory_mode: cpu': must be one of numa, none"),
        ({"bind_config": CPU, "bind_cpu": []}, "bind_cpu': must be a JSON object"),
        ({"bind_config": CPU, "bind_cpu": {"npu0": {}}}, "bind_cpu: npu0': must be keyed by"),
        ({"bind_config": CPU, "bind_cpu": {"device0": "0-3"}}, 'bind_cpu: device0: "0-3"'),
        ({"bind_config": CPU, "bind_cpu": {"device0": {"main": "0-"}}}, 'bind_cpu: device0: {"main": "0-"}'),
        (
            {"bind_config": {"bind_memory_mode": "numa"}, "bind_memory": {"device0": [0]}},
            "bind_memory: device0: [0]",
        ),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, content: Any, says: str) -> None:
    path = file_of(tmp_path, content)

    with pytest.raises(RecoveryError) as caught:
        job([f"--bind_numa={path}", "train.py"])

    assert str(caught.value).startswith("SETTING_RANGE: --bind_numa=")
    assert says in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(RecoveryError, match="No such file"):
        job(["--bind_numa=none.json", "train.py"])
