"""`srun python train.py`: what Slurm says to a task is read as the MS_* variables that mean the same."""

from __future__ import annotations

from recovery.config.foreign_launchers import StartedBy, recognise

TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[0-1]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
}


def test_a_task_is_a_worker_by_its_number() -> None:
    start = recognise(TASK)
    assert start.started_by is StartedBy.SLURM
    assert start.variables == {
        "MS_ROLE": "MS_WORKER",
        "MS_NODE_ID": "3",
        "MS_WORKER_NUM": "4",
        "MS_SCHED_HOST": "n0",
        "MS_SCHED_PORT": "21422",
    }


def test_on_one_host_they_meet_at_its_loopback_address() -> None:
    assert recognise({**TASK, "SLURM_STEP_NODELIST": "n7"}).variables["MS_SCHED_HOST"] == "127.0.0.1"


def test_what_is_set_stays() -> None:
    assert "MS_SCHED_HOST" not in recognise({**TASK, "MS_SCHED_HOST": "10.0.0.1"}).variables
    assert recognise({**TASK, "MS_ROLE": "MS_WORKER"}).started_by is StartedBy.DYNAMIC_CLUSTER


def test_a_batch_script_is_no_task() -> None:
    script = {name: value for name, value in TASK.items() if "STEP" not in name}
    assert recognise(script).started_by is StartedBy.DYNAMIC_CLUSTER


def test_mpirun_in_a_step_places_the_ranks() -> None:
    by_mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert recognise({**TASK, **by_mpirun}).started_by is StartedBy.OPENMPI
