"""What Slurm says of a job, and the batch script that is written for it."""

from __future__ import annotations

import pytest

from recovery.config import slurm_allocation as allocation
from recovery.errors import SettingError
from recovery.launch.slurm import batch_script, job_record, workers_asked

# As Slurm 22.05 sets them in a step of three hosts.
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[0-3]",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[0-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NODEID": "1",
}
TYPED = (
    "--nodes=2",
    "--spares",
    "1",
    "--time=8:00:00",
    "-p",
    "gpu",
    "--",
    "--nproc-per-node=4",
    "train.py",
    "--lr",
    "0.1",
)


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("", ()),
        ("alone", ("alone",)),
        ("n[01-03,7],m", ("n01", "n02", "n03", "n7", "m")),
        ("x[9-11]", ("x9", "x10", "x11")),
        ("r[1-2]n[3,4]-ib", ("r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib")),
    ],
)
def test_a_list_of_hosts_is_read_as_slurm_shortens_it(names: str, hosts: tuple[str, ...]) -> None:
    assert allocation.expand(names) == hosts


def test_what_a_step_knows() -> None:
    step = allocation.read(STEP)
    assert step is not None
    assert (step.hosts, step.position, step.tasks_per_host, step.step_id) == (("n0", "n1", "n2"), 1, 1, 2)
    assert allocation.read({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4,2(x2)"}).tasks_per_host == 4  # type: ignore[union-attr]
    assert allocation.read({}) is None


def test_a_batch_script_sees_all_hosts() -> None:
    script = {name: value for name, value in STEP.items() if "STEP" not in name}
    found = allocation.read({**script, "SLURM_RESTART_COUNT": "3", "SLURM_GPUS_ON_NODE": "8"})
    assert found is not None
    assert (found.hosts, found.step_id) == (("n0", "n1", "n2", "n3"), None)
    assert (found.restarts, found.gpus) == (3, 8)


def test_two_jobs_on_one_host_have_ports_of_their_own() -> None:
    first, second = (allocation.read({**STEP, "SLURM_JOB_ID": number}) for number in ("4711", "4712"))
    assert first is not None
    assert second is not None
    taken = {first.port, first.port + 1} & {second.port, second.port + 1}
    assert not taken, "rank 0 listens behind the scheduler"
    assert 12_000 <= first.port < 30_000


def test_a_variable_that_slurm_has_not_written_is_named() -> None:
    with pytest.raises(SettingError, match="SLURM_JOB_ID='x': must be a whole number, as Slurm sets it"):
        allocation.read({"SLURM_JOB_ID": "x"})


@pytest.mark.parametrize(
    "names", ["n[a-b]", "n[0-2", "n]0[", "n[]", "n[1-]", "n[0-1],,m", "n0 n1", "n[1--3]"]
)
def test_a_list_of_hosts_that_slurm_has_not_written_is_named(names: str) -> None:
    """It was a ValueError of Python's, or a host of that name."""
    with pytest.raises(SettingError, match=r"SLURM_STEP_NODELIST=.*as Slurm writes it") as refused:
        allocation.read({**STEP, "SLURM_STEP_NODELIST": names})
    assert refused.value.code == "SETTING_TYPE"


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_STEP_TASKS_PER_NODE", "2(x"), ("SLURM_NODEID", "9" * 5_000), ("SLURM_JOB_ID", "\u0663")],
)
def test_a_number_that_slurm_has_not_written_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"{name}="):
        allocation.read({**STEP, name: value})


# --- what is said of a job that runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "when"),
    [
        # As Slurm 22.05 says it: in its grace, before, behind `scancel`, and when the grace is over.
        ("JobState=RUNNING Reason=None PreemptTime=2026-11-30T18:05:35", "2026-11-30T18:05:35"),
        ("JobState=RUNNING Reason=None PreemptTime=None", ""),
        ("JobState=CANCELLED Reason=None PreemptTime=2026-11-30T18:05:35", ""),
        ("JobState=COMPLETING Reason=None Restarts=1", ""),
    ],
)
def test_a_job_is_preempted_while_its_grace_lasts(fields: str, when: str) -> None:
    said = f"JobId=6 ArrayJobId=5 JobState=PENDING\nJobId=5 JobName=a b=c {fields} \n"
    assert job_record.preempted_at(job_record.read(said, 5)) == when


def test_of_a_job_that_slurm_does_not_know_nothing_is_said() -> None:
    assert job_record.read("slurm_load_jobs error: Invalid job id specified", 5) == {}
    assert not job_record.preempted_at({})


# --- the batch script ---------------------------------------------------------------------------------------------------


def test_the_script_of_a_job_with_a_spare_host() -> None:
    assert batch_script.render(batch_script.read(TYPED), TYPED, "/env/bin/python") == (
        """\
#!/bin/bash
# Made by: recovery slurm --nodes=2 --spares 1 --time=8:00:00 -p gpu -- --nproc-per-node=4 train.py --lr 0.1
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --no-kill
#SBATCH --exclusive
#SBATCH --time=8:00:00
#SBATCH -p gpu

exec /env/bin/python -m recovery.launch.slurm.batch_step --nodes=2 --notice=120 -- --nproc-per-node=4 train.py --lr 0.1
"""
    )


def test_what_is_typed_wins_over_what_the_script_would_say() -> None:
    typed = (
        "--no-requeue",
        "--open-mode=truncate",
        "-c",
        "16",
        "--comment=a b",
        "--recovery-path=/local/x y",
        "--",
        "t.py",
    )
    script = batch_script.render(batch_script.read(typed), typed, "python")
    assert "#SBATCH --requeue" not in script
    assert "--open-mode=append" not in script
    assert "--exclusive" not in script, "a host is shared as was asked for"
    assert "#SBATCH --comment='a b'\n" in script
    assert "#SBATCH --no-kill" not in script, (
        "without a spare host Slurm itself puts the job back into the queue"
    )
    assert "'--recovery-path=/local/x y' -- t.py" in script


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--nodes=2 train.py", "must stand between the options of sbatch and what `recovery run` is given"),
        ("--nodes=2 --", "must stand between"),
        ("--nodes=0 -- t.py", "--nodes='0': must be a whole number from 1 on"),
        ("--nodes=two -- t.py", "--nodes='two': must be a whole number from 1 on"),
        ("-N x -- t.py", "--nodes='x': must be"),
        ("--spares=-1 -- t.py", "--spares='-1': must be a whole number from 0 on"),
        ("--notice=5 -- t.py", "--notice='5': must be a whole number from 10 on"),
        ("--ntasks-per-node=4 -- t.py", "is set by the batch script itself. There is one launcher a host"),
        ("--signal=B:TERM@60 -- t.py", "Give --notice=SECONDS"),
        ("--wrap=x -- t.py", "Give the command behind --"),
        ("--submit=yes -- t.py", "--submit='yes': takes no value"),
        ("--nodes -- t.py", "--nodes='': needs a value"),
        ("train.py -- t.py", "is no option, and no option before it takes it"),
        ("--time=1 2 -- t.py", "is no option, and no option before it takes it"),
    ],
)
def test_what_cannot_be_is_refused_by_name(typed: str, said: str) -> None:
    with pytest.raises(SettingError) as refused:
        batch_script.read(typed.split())
    assert said in str(refused.value)


# --- workers of a host --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        ("", 0),
        ("--time=60 --gres=nvme:1,gpus_lic:3", 0),
        ("--gpus-per-node=0", 0),
        ("--gpus-per-node=4", 4),
        ("--gpus-per-node a100:4", 4),
        ("--gres=gpu:8", 8),
        ("--gres=nvme:1,gpu:a100:2", 2),
        ("--gpus-per-node=2 --gres=gpu:2", 2),
        # As sbatch takes them.
        ("--gpus-per-node=2 --gpus-per-node=4", 4),
    ],
)
def test_a_host_has_as_many_workers_as_it_was_asked_for_gpus(typed: str, count: int) -> None:
    workers = workers_asked.read(batch_script.read([*typed.split(), "--", "t.py"]).sbatch)
    assert workers.number == count
    assert ("by --g" in workers.note) is bool(count)
    assert ("one worker: give --nproc-per-node=N" in workers.note) is not bool(count)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--gpus=8", "--gpus='8'"),
        ("-G 8", "--gpus='8'"),
        ("-G8", "--gpus='8'"),
        ("--gpus-per-task=1", "--gpus-per-task='1'"),
        ("--gpus-per-node=a100:2,v100:2", "--gpus-per-node='a100:2,v100:2'"),
        ("--gpus-per-node=many", "--gpus-per-node='many'"),
        ("--gres=gpu", "--gres='gpu'"),
        ("--gres=gpu:2 --gpus-per-node=4", "--gres='gpu:2'"),
    ],
)
def test_gpus_that_do_not_say_how_many_workers_a_host_has_ask_for_it(typed: str, said: str) -> None:
    sbatch = batch_script.read([*typed.split(), "--", "t.py"]).sbatch
    with pytest.raises(SettingError, match="leaves open how many workers a host has") as refused:
        workers_asked.read(sbatch)
    assert said in str(refused.value)
    assert "--nproc-per-node=4" in str(refused.value)
