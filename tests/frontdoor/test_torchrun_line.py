"""torchrun's command line in the launcher's words: each flag is taken, taken without effect, or refused by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import torchrun_line
from recovery.cli.devices_seen import devices_seen, gpus_shown
from recovery.cli.torchrun_line import Line, Machine
from recovery.errors import SettingError
from recovery.launch.job_spec import JobSpec

MACHINE = Machine(processors=6, devices=lambda _word: 0, free_port=23456)


def read(machine: Machine = MACHINE, *, module: bool = False, **given: Any) -> Line:
    return torchrun_line.read(
        {**given, **({"module": True} if module else {})}, ("train.py", "--lr=1"), machine
    )


def job(**given: Any) -> JobSpec:
    return read(**given).spec


def test_the_shortest_line_is_one_worker_that_is_watched_in_the_foreground() -> None:
    read_as = job()
    assert (read_as.worker_num, read_as.local_worker_num, read_as.join) == (1, 1, True)
    assert read_as.task == ("train.py", "--lr=1")


def test_hosts_and_workers_are_counted_as_torchrun_counts_them() -> None:
    read_as = job(nnodes="2:2", nproc_per_node="4", node_rank="1", rdzv_endpoint="10.0.0.1:29500")
    assert (read_as.worker_num, read_as.local_worker_num, read_as.node_rank) == (8, 4, 1)
    assert (read_as.master_addr, read_as.master_port) == ("10.0.0.1", 29500)


def test_further_signals_that_ask_the_job_to_stop_are_read_as_torchruns() -> None:
    assert job(signals_to_handle="SIGUSR1,SIGUSR2").signals_to_handle == (signal.SIGUSR1, signal.SIGUSR2)
    with pytest.raises(SettingError, match="signals_to_handle='SIGKILL'"):
        job(signals_to_handle="SIGKILL")


@pytest.mark.parametrize(
    ("endpoint", "meets_at"),
    [
        ("host", ("host", 29400)),
        ("[::1]:29500", ("::1", 29500)),
        ("[::1]", ("::1", 29400)),
        ("10.0.0.1", ("10.0.0.1", 29400)),
    ],
)
def test_an_endpoint_without_a_port_has_torchruns(endpoint: str, meets_at: tuple[str, int]) -> None:
    read_as = job(rdzv_endpoint=endpoint)
    assert (read_as.master_addr, read_as.master_port) == meets_at


def test_standalone_takes_a_free_port_of_this_host() -> None:
    read_as = job(standalone=True)
    assert (read_as.master_addr, read_as.master_port) == ("127.0.0.1", 23456)


@pytest.mark.parametrize(
    ("word", "devices", "workers"),
    [("auto", 0, 6), ("auto", 2, 2), ("gpu", 2, 2), ("xpu", 3, 3), ("cpu", 2, 6)],
)
def test_workers_by_word_are_counted_on_this_host(word: str, devices: int, workers: int) -> None:
    asked: list[str] = []

    def count(kind: str) -> int:
        asked.append(kind)
        return devices

    line = read(MACHINE._replace(devices=count), nproc_per_node=word)
    assert line.spec.local_worker_num == workers
    assert asked == ([] if word == "cpu" else [word])


def test_torch_is_asked_for_the_devices_and_the_driver_where_there_is_none(tmp_path: Path) -> None:
    package = tmp_path / "torch.py"
    package.write_text(
        "class cuda:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    device_count = staticmethod(lambda: 5)\n"
        "class accelerator(cuda):\n"
        "    device_count = staticmethod(lambda: 7)\n"
        "print('a word of its own')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert [devices_seen(word, environment) for word in ("gpu", "auto")] == [5, 7]
    package.write_text("raise ImportError")
    assert [devices_seen(word, environment) for word in ("gpu", "xpu")] == [gpus_shown(None), 0]


def test_defaults_stand_in_the_environment_as_for_torchrun() -> None:
    """A pod of Kubeflow runs the bare line, with all of it in PET_*."""
    pod = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_ENDPOINT": "",
        "PET_STANDALONE": "0",
    }
    line = read(MACHINE._replace(environment=pod))
    read_as = line.spec
    assert (read_as.worker_num, read_as.local_worker_num, read_as.node_rank) == (8, 4, 1)
    assert (read_as.master_addr, read_as.master_port) == ("job-node-0-0.job", 29500)
    assert "PET_NNODES=2" in line.notes[0]


def test_what_is_typed_wins_over_the_environment() -> None:
    pod = {"PET_NNODES": "2", "PET_MASTER_ADDR": "other", "PET_MASTER_PORT": "29500"}
    line = read(MACHINE._replace(environment=pod), nnodes="1", standalone=True)
    assert (line.spec.worker_num, line.spec.master_addr) == (1, "127.0.0.1")
    assert "master" not in line.notes[0].lower()


def test_a_switch_of_the_environment_is_0_or_1() -> None:
    assert read(MACHINE._replace(environment={"PET_STANDALONE": "1"})).spec.master_port == 23456
    with pytest.raises(SettingError, match="PET_STANDALONE"):
        read(MACHINE._replace(environment={"PET_STANDALONE": "yes"}))


@pytest.mark.parametrize("given", [{}, {"module": True}])
def test_another_interpreter_is_named_by_the_environment(given: dict[str, Any]) -> None:
    line = read(MACHINE._replace(environment={"PYTHON_EXEC": "/opt/python"}), **given)
    assert line.spec.task == ("/opt/python", *(["-m"] if given else []), "train.py", "--lr=1")


def test_a_port_of_zero_is_a_free_one_of_a_single_host() -> None:
    assert read(rdzv_endpoint="localhost:0").spec.master_port == 23456
    with pytest.raises(SettingError, match="the others would not know it"):
        read(rdzv_endpoint="host:0", nnodes="2")


def test_processes_that_wait_are_typed_as_standbys() -> None:
    assert job(standbys="2").standby_num == 2


def test_gpus_are_those_that_the_driver_lists_and_the_user_shows(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    shown = {
        None: 2,
        "1": 1,
        "": 0,
        "0,1": 2,
        "-1": 0,
        "0,-1,1": 1,
        "0,0": 0,
        "GPU-3e056f05,GPU-5d": 2,
        "0,,1": 1,
    }
    assert {visible: gpus_shown(visible, tmp_path) for visible in shown} == shown
    assert gpus_shown(None, tmp_path / "absent") == 0


def test_a_module_is_started_as_python_would() -> None:
    assert read(module=True).spec.task == ("python", "-m", "train.py", "--lr=1")


def test_a_wait_for_the_workers_is_taken_from_the_rendezvous_and_its_other_words_are_said() -> None:
    line = read(rdzv_conf="timeout=90,is_host=1")
    assert line.spec.cluster_time_out == 90
    assert [note for note in line.notes if "is_host" in note]


@pytest.mark.parametrize("name", torchrun_line.WITHOUT_EFFECT)
def test_a_flag_that_asks_for_what_happens_anyway_is_taken_and_said(name: str) -> None:
    given: dict[str, Any] = {name: "c10d" if name == "rdzv_backend" else "1"}
    [note] = read(**given).notes
    assert note.startswith(f"--{name} has no effect")


@pytest.mark.parametrize(
    ("given", "next_step"),
    [
        *(({name: "x"}, instead) for name, instead in torchrun_line.REFUSED.items()),
        ({"nnodes": "1:4"}, "--standbys=N"),
        ({"rdzv_backend": "etcd-v2"}, "Leave it out"),
        ({"nproc_per_node": "gpu"}, "Give a number"),
        ({"nproc_per_node": "many"}, "--nproc_per_node=2"),
        ({"nproc_per_node": "0"}, "--nproc_per_node="),
        ({"rdzv_endpoint": "host:80"}, "--rdzv_endpoint"),
    ],
)
def test_a_flag_without_a_counterpart_is_refused_with_what_to_type(
    given: dict[str, Any], next_step: str
) -> None:
    with pytest.raises(SettingError) as refused:
        read(**given)
    assert next_step in str(refused.value)


def test_logs_that_are_shown_are_named_by_one_flag() -> None:
    with pytest.raises(SettingError, match=r"--tee=.* says the same as --local_ranks_filter, which is given"):
        read(tee="3", local_ranks_filter="0")


def test_nothing_to_start_is_refused() -> None:
    with pytest.raises(SettingError, match="task_script is missing"):
        torchrun_line.read({}, (), MACHINE)


def test_workers_find_torchruns_variables_and_the_address_that_was_named() -> None:
    read_as = job(nnodes="2", nproc_per_node="4", node_rank="1", rdzv_id="a", role="b", local_addr="10.0.0.2")
    assert read_as.variables == {"MS_WORKER_IP": "10.0.0.2"}
    assert read_as.worker_variables == {
        "TORCHELASTIC_RUN_ID": "a",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "b",
        "ROLE_WORLD_SIZE": "8",
    }
    assert (job().worker_variables["TORCHELASTIC_RUN_ID"], job().log_dir) == ("none", Path("logs"))
