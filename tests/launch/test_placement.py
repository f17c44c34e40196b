"""Who runs where with which environment."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recovery.errors import RecoveryError
from recovery.launch.job_spec import Host
from recovery.launch.placement import (
    Placed,
    ProcessKind,
    Script,
    environment_of,
    environment_of_all,
    own_directory,
    place,
)
from tests.launch.typed import job

HOST = Host(
    name="h1",
    address="10.0.0.7",
    owns_master_addr=True,
    interpreter="/py",
    cpus=(0, 1, 2, 3),
    numa_nodes=(0, 1),
)
ELSEWHERE = msgspec.structs.replace(HOST, owns_master_addr=False)


OURS = Script(supervised=False, world_of="")


def placed(*words: str, host: Host = HOST, script: Script = OURS) -> tuple[Placed, ...]:
    return place(job([*words, "train.py", "--epochs", "3"]), host, script)


def test_one_host_has_the_scheduler_and_all_workers() -> None:
    scheduler, *workers = placed("--worker_num=2", "--master_port=9000", "--cluster_time_out=30")

    shared = {
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "9000",
        "MS_TOPO_TIMEOUT": "30",
        "RANK_SIZE": "2",
    }
    assert (scheduler.kind, scheduler.name) == (ProcessKind.SCHEDULER, "scheduler")
    assert scheduler.variables == {**shared, "MS_ROLE": "MS_SCHED", "MS_NODE_ID": "sched"}
    assert [worker.name for worker in workers] == ["worker_0", "worker_1"]
    assert workers[1].variables == {
        **shared,
        "MS_ROLE": "MS_WORKER",
        "MS_NODE_ID": "1",
        "RANK_ID": "1",
        "DEVICE_ID": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "9001",
    }
    assert {one.command for one in workers} == {("/py", "train.py", "--epochs", "3")}
    assert scheduler.command == ("/py", "-m", "recovery", "scheduler")


def test_the_second_of_two_hosts_has_the_later_ranks_and_no_scheduler() -> None:
    workers = placed("--worker_num=8", "--local_worker_num=4", "--node_rank=1", host=ELSEWHERE)

    assert [worker.variables["RANK_ID"] for worker in workers] == ["4", "5", "6", "7"]
    assert [worker.variables["DEVICE_ID"] for worker in workers] == ["0", "1", "2", "3"]
    assert [worker.name for worker in workers] == ["worker_4", "worker_5", "worker_6", "worker_7"]


def test_automatic_ranks_leave_the_rank_to_the_scheduler() -> None:
    _, first, second = placed("--worker_num=8", "--local_worker_num=2")

    assert [first.variables["MS_NODE_ID"], second.variables["MS_NODE_ID"]] == ["10.0.0.7_0", "10.0.0.7_1"]
    assert not {"RANK_ID", "RANK"} & set(first.variables)


def test_a_host_beside_the_schedulers_has_a_directory_of_its_own() -> None:
    """Without ranks each host's first worker is `worker_0`; with them each still has an agent's note."""
    shared = "--log_dir=/shared/logs"
    for flags in (("--local_worker_num=2",), ("--local_worker_num=2", "--node_rank=1")):
        spec = job([shared, "--worker_num=4", *flags, "train.py"])
        assert own_directory(spec, HOST) == Path("/shared/logs")
        assert own_directory(spec, ELSEWHERE) == Path("/shared/logs", ELSEWHERE.address)
    for alone in (("--worker_num=4",), ("--worker_num=4", "--local_worker_num=2", "--sim_level=0")):
        assert own_directory(job([shared, *alone, "train.py"]), ELSEWHERE) == Path("/shared/logs")


@pytest.mark.parametrize(
    ("task", "command"),
    [
        (["a.py", "-x"], ("/py", "a.py", "-x")),
        (["python", "-m", "a"], ("/py", "-m", "a")),
        (["python3", "a.py"], ("/py", "a.py")),
        (["pytest", "-s", "a.py"], ("/py", "-m", "pytest", "-s", "a.py")),
    ],
)
def test_a_task_is_a_script_a_module_or_pytest(task: list[str], command: tuple[str, ...]) -> None:
    _, worker = place(job(["--worker_num=1", *task]), HOST, OURS)
    assert worker.command == command


def test_a_script_that_knows_nothing_of_recovery_has_a_worker_proxy() -> None:
    plain = Script(supervised=True, world_of="")
    supervise = ("/py", "-m", "recovery.launch.worker_proxy")
    script = ("/py", "train.py", "--epochs", "3")
    assert placed("--worker_num=1", script=plain)[1].command == (*supervise, *script)
    with_mindspore = Script(supervised=True, world_of="mindspore")
    assert placed("--worker_num=1", script=with_mindspore)[1].command == (*supervise, "--mindspore", *script)
    [simulated] = placed("--worker_num=1", "--sim_level=0", script=with_mindspore)
    assert simulated.command == script


def test_an_address_with_colons_becomes_a_node_id() -> None:
    ipv6 = msgspec.structs.replace(HOST, address="fd00::1")
    assert placed("--worker_num=8", "--local_worker_num=2", host=ipv6)[1].node_id == "fd00--1_0"


def test_a_dry_run_is_one_process_and_forms_no_cluster() -> None:
    """As msrun's documents say; which rank it is may be chosen."""
    [first] = placed("--worker_num=4", "--sim_level=1")
    assert (first.variables["MS_SIMULATION_LEVEL"], first.variables["RANK_ID"]) == ("1", "0")
    assert not any(name.startswith(("MS_ROLE", "MS_SCHED")) for name in first.variables)
    [one] = placed("--worker_num=4", "--sim_level=1", "--sim_rank_id=2")
    assert one.variables["RANK_ID"] == "2"


def test_nothing_leaks_from_the_launcher_or_from_one_child_to_the_next() -> None:
    outside = {
        "PATH": "/bin",
        "RANK_ID": "7",
        "MS_NODE_ID": "7",
        "MS_ROLE": "MS_SCHED",
        "MS_ENABLE_RECOVERY": "1",
    }
    scheduler, automatic, _ = placed("--worker_num=8", "--local_worker_num=2")

    environment = environment_of(automatic, outside, restarts=2)
    assert "RANK_ID" not in environment
    assert (environment["MS_ROLE"], environment["MS_NODE_ID"]) == ("MS_WORKER", "10.0.0.7_0")
    assert (environment["PATH"], environment["MS_ENABLE_RECOVERY"]) == ("/bin", "1")
    assert environment["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert "TORCHELASTIC_RESTART_COUNT" not in environment_of(scheduler, outside, restarts=1)


def test_standbys_are_further_processes_without_a_rank_and_a_device() -> None:
    scheduler, _, _, first, second = placed("--worker_num=2", "--standby_num=2", "--bind_core=True")

    assert [(one.name, one.node_id, one.kind) for one in (first, second)] == [
        ("standby_0", "standby_0", ProcessKind.STANDBY),
        ("standby_1", "standby_1", ProcessKind.STANDBY),
    ]
    assert (first.variables["MS_STANDBY"], first.variables["MS_ROLE"]) == ("1", "MS_WORKER")
    assert not {"RANK", "RANK_ID", "LOCAL_RANK", "DEVICE_ID"} & set(first.variables)
    assert (first.command, first.cpus, first.rank) == (("/py", "train.py", "--epochs", "3"), (), None)
    assert environment_of(scheduler, {}, restarts=0)["MS_STANDBY_NUM"] == "2"
    assert "TORCHELASTIC_RESTART_COUNT" in environment_of(first, {}, restarts=1)


def test_a_standby_counts_as_many_threads_as_the_workers_whose_ranks_it_takes() -> None:
    workers = "--worker_num=2", "--standby_num=1"
    for words, threads in (
        (("--bind_core=True",), "2"),
        (('--bind_core={"device0": ["0-2"], "device1": ["3"]}',), None),
        ((), None),
    ):
        standby = placed(*workers, *words)[-1]
        assert environment_of(standby, {}, restarts=0).get("OMP_NUM_THREADS") == threads
    bound = placed(*workers, "--bind_core=True")[-1]
    assert environment_of(bound, {"OMP_NUM_THREADS": "7"}, restarts=0)["OMP_NUM_THREADS"] == "7"


def test_every_start_of_every_rank_hashes_texts_alike_unless_a_person_says_otherwise() -> None:
    _, first, second, standby = placed("--worker_num=2", "--standby_num=1")
    for one in (first, second, standby):
        assert environment_of(one, {}, restarts=3)["PYTHONHASHSEED"] == "0"
        assert environment_of(one, {"PYTHONHASHSEED": "random"}, restarts=0)["PYTHONHASHSEED"] == "random"


def test_standbys_of_several_hosts_have_ids_of_their_own() -> None:
    words = ("--worker_num=8", "--local_worker_num=4", "--standby_num=2")
    scheduler, *_, last = placed(*words, "--node_rank=0")
    assert (last.node_id, scheduler.defaults) == ("standby_1", {"MS_STANDBY_NUM": "4"})
    assert placed(*words, "--node_rank=1", host=ELSEWHERE)[-1].node_id == "standby_3"
    assert placed(*words, host=ELSEWHERE)[-1].node_id == "10.0.0.7_standby_1"


def test_all_that_a_spare_host_runs_waits_under_names_that_no_other_host_has() -> None:
    words = ("--worker_num=8", "--local_worker_num=4", "--standby_num=1", "--spares=2")
    scheduler, *workers, standby = placed(*words, "--node_rank=0")
    assert (standby.node_id, scheduler.defaults) == ("standby_0", {"MS_STANDBY_NUM": "12"})
    assert [worker.rank for worker in workers] == [0, 1, 2, 3]
    named = [[one.node_id for one in placed(*words, f"--node_rank={n}", host=ELSEWHERE)] for n in (1, 2, 3)]
    assert named == [
        ["4", "5", "6", "7", "standby_1"],
        ["standby_2", "standby_3", "standby_4", "standby_5", "standby_6"],
        ["standby_7", "standby_8", "standby_9", "standby_10", "standby_11"],
    ]
    spare = placed(*words, "--node_rank=2", host=ELSEWHERE)
    assert {(one.kind, one.variables["MS_STANDBY"], one.rank) for one in spare} == {
        (ProcessKind.STANDBY, "1", None)
    }
    assert [one.local_index for one in spare] == [0, 1, 2, 3, 4]


def test_the_one_host_that_trains_beside_a_spare_one_is_not_alone() -> None:
    words = ("--worker_num=2", "--local_worker_num=2", "--spares=1")
    assert [one.node_id for one in placed(*words, "--node_rank=1", host=ELSEWHERE)] == [
        "standby_0",
        "standby_1",
    ]
    # Ranks that the scheduler gives: whoever comes last waits.
    assert [one.node_id for one in placed(*words, host=ELSEWHERE)] == ["10.0.0.7_0", "10.0.0.7_1"]
    assert own_directory(job([*words, "train.py"]), ELSEWHERE) == Path("10.0.0.7")


def test_a_host_beyond_the_spare_ones_is_refused() -> None:
    with pytest.raises(
        RecoveryError, match=r"--node_rank=3: is beyond the 2 hosts .* --spares=1.* Give 0 to 2"
    ):
        job(["--worker_num=8", "--local_worker_num=4", "--spares=1", "--node_rank=3", "train.py"])


def test_how_many_standbys_may_wait_is_said_by_the_variable_first() -> None:
    scheduler = placed("--worker_num=8", "--local_worker_num=3", "--standby_num=1")[0]
    assert environment_of(scheduler, {}, restarts=0)["MS_STANDBY_NUM"] == "3"
    assert environment_of(scheduler, {"MS_STANDBY_NUM": "7"}, restarts=0)["MS_STANDBY_NUM"] == "7"
    assert "MS_STANDBY_NUM" not in environment_of(placed("--worker_num=2")[0], {}, restarts=0)


def test_a_later_start_has_its_own_id_and_inherits_nobodys() -> None:
    worker = placed("--worker_num=2")[1]
    outside = {"MS_REPLACES": "other", "MS_STANDBY": "1"}
    assert not {"MS_REPLACES", "MS_STANDBY"} & set(environment_of(worker, outside, restarts=0))
    named = environment_of(worker, {}, restarts=1, named={"MS_NODE_ID": "0.2", "MS_REPLACES": "0"})
    assert (named["MS_NODE_ID"], named["MS_REPLACES"], named["RANK_ID"]) == ("0.2", "0", "0")


def test_a_return_on_proof_is_said_to_all_processes() -> None:
    assert {one.variables.get("MS_REJOIN") for one in placed("--worker_num=2", "--rejoin=proof")} == {"proof"}
    assert {one.variables.get("MS_REJOIN") for one in placed("--worker_num=2")} == {None}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_all_workers_have_in_common_names_none_of_them(workers: int) -> None:
    given = {"HOME": "/root", "OMP_NUM_THREADS": "1", "MS_NODE_ID": "9"}
    common = environment_of_all(placed(f"--worker_num={workers}")[1:], given)
    size = str(workers)
    assert common == {
        "HOME": "/root",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": size,
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "8118",
        "MS_TOPO_TIMEOUT": "600",
        "RANK_SIZE": size,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "8119",
    }


def test_processors_are_shared_evenly_or_as_named() -> None:
    assert [one.cpus for one in placed("--worker_num=2", "--bind_core=True")] == [(), (0, 1), (2, 3)]
    assert [one.cpus for one in placed("--worker_num=8", "--bind_core=True")][1:4] == [(0,), (0,), (1,)]
    named = '--bind_core={"scheduler": ["0"], "device1": ["1-2,3"]}'
    assert [one.cpus for one in placed("--worker_num=2", named)] == [(0,), (), (1, 2, 3)]
    with pytest.raises(RecoveryError, match="processor 9 is not among this host's"):
        placed("--worker_num=1", '--bind_core={"device0": ["3,9"]}')


def test_memory_nodes_are_shared_evenly_or_as_named() -> None:
    _, first, second = placed("--worker_num=2", "--bind_numa=True")
    assert first.command[:3] == ("numactl", "--membind=0", "--cpunodebind=0")
    assert second.command[:3] == ("numactl", "--membind=1", "--cpunodebind=1")
    scheduler, worker = placed("--worker_num=1", '--bind_numa={"scheduler": ["0-1"]}')
    assert scheduler.command[1] == "--membind=0,1"
    assert worker.command[0] == "/py"
    with pytest.raises(RecoveryError, match="memory nodes are 0,1"):
        placed("--worker_num=1", '--bind_numa={"device0": ["4"]}')


def test_names_of_logs_may_hold_the_host() -> None:
    assert placed("--worker_num=1", "--worker_log_name=w_{ip}_{hostname}")[1].name == "w_10.0.0.7_h1_0"
