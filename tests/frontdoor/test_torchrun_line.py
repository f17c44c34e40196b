"""torchrun's command line in the launcher's words: each flag is taken, taken without effect, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery.cli import torchrun_line
from recovery.cli.torchrun_line import Line, Machine
from recovery.errors import SettingError
from recovery.launch.arguments import Arguments

MACHINE = Machine(processors=6, gpus=0, free_port=23456)


def read(machine: Machine = MACHINE, *, module: bool = False, **given: Any) -> Line:
    return torchrun_line.read(
        {**given, **({"module": True} if module else {})}, ("train.py", "--lr=1"), machine
    )


def arguments(**given: Any) -> Arguments:
    line = read(**given)
    return Arguments.of(line.typed, line.task)


def test_the_shortest_line_is_one_worker_that_is_watched_in_the_foreground() -> None:
    read_as = arguments()
    assert (read_as.worker_num, read_as.local_worker_num, read_as.join) == (1, 1, True)
    assert (read_as.task_script, read_as.task_script_args) == ("train.py", ("--lr=1",))


def test_hosts_and_workers_are_counted_as_torchrun_counts_them() -> None:
    read_as = arguments(nnodes="2:2", nproc_per_node="4", node_rank="1", rdzv_endpoint="10.0.0.1:29500")
    assert (read_as.worker_num, read_as.local_worker_num, read_as.node_rank) == (8, 4, 1)
    assert (read_as.master_addr, read_as.master_port) == ("10.0.0.1", 29500)


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
    typed = read(rdzv_endpoint=endpoint).typed
    assert (typed["master_addr"], typed["master_port"]) == meets_at


def test_standalone_takes_a_free_port_of_this_host() -> None:
    typed = read(standalone=True).typed
    assert (typed["master_addr"], typed["master_port"]) == ("127.0.0.1", 23456)


@pytest.mark.parametrize(
    ("word", "gpus", "workers"), [("auto", 0, 6), ("auto", 2, 2), ("gpu", 2, 2), ("cpu", 2, 6)]
)
def test_workers_by_word_are_counted_on_this_host(word: str, gpus: int, workers: int) -> None:
    line = read(MACHINE._replace(gpus=gpus), nproc_per_node=word)
    assert line.typed["local_worker_num"] == workers


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
    assert {visible: torchrun_line.gpus_shown(visible, tmp_path) for visible in shown} == shown
    assert torchrun_line.gpus_shown(None, tmp_path / "absent") == 0


def test_a_module_is_started_as_python_would() -> None:
    assert read(module=True).task == ("python", "-m", "train.py", "--lr=1")


def test_a_wait_for_the_workers_is_taken_from_the_rendezvous_and_its_other_words_are_said() -> None:
    line = read(rdzv_conf="timeout=90,is_host=1")
    assert line.typed["cluster_time_out"] == 90
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
        ({"nnodes": "1:4"}, "--standby_num"),
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
