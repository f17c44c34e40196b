"""The program of a job's batch script: `python -m recovery.launch.slurm.batch_step --nodes=N [--notice=S] [--recovery-path=PATH] -- LINE`.

It starts a launcher on each host and ends as the one beside the scheduler does. Before a time limit, where Slurm takes the hosts for another job, and where
so many hosts are lost that ranks are missing, the job goes back into the queue; it goes on there from what it has saved.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from recovery.config import slurm_allocation as allocation
from recovery.core.records import JobState
from recovery.errors import ROWS, RecoveryError, SettingError
from recovery.launch import console, stored_advice
from recovery.launch.credentials import job_token
from recovery.launch.slurm import batch_script, job_record
from recovery.launch.slurm.host_steps import HostSteps
from recovery.launch.slurm.node_address import reached_at

_ENDS_IN_S = 10
"""Of what is left before a time limit: for the end of the processes and of the steps."""
_ASKED_TO_END = 128 + signal.SIGTERM
_NEXT_RUN = ("--continue", "--new-run", "--new_run")


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the job in its allocation. Gives its exit code.

    Raises:
        SettingError: this is no batch script of Slurm's, or the allocation has fewer hosts than the job needs.
        RecoveryPathError: the recovery path cannot be used.
    """
    line = batch_script.read(words)
    here = allocation.read(environment)
    if here is None or here.step_id is not None:
        raise SettingError(
            "SETTING_MISSING",
            field="SLURM_JOB_ID",
            state="missing" if here is None else "of a step",
            rule="this is the program of a batch script, and starts a step of Slurm's for each host",
            next_step="Submit the job: recovery slurm --submit ... -- train.py.",
        )
    first = environment.get("SLURMD_NODENAME", here.hosts[0])
    hosts = sorted(here.hosts, key=lambda host: host != first)
    if len(hosts) < line.nodes:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--nodes",
            value=line.nodes,
            rule=f"is more than the {len(hosts)} hosts of this allocation ({', '.join(hosts)})",
            next_step=f"Ask Slurm for {line.nodes + line.spares} hosts, --spares among them.",
        )
    path = Path(line.recovery_path or environment.get("MS_RECOVERY_PATH") or "recovery").absolute()
    ours = {**environment, "MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(path)}
    if _is_done(line, ours):
        console.say(f"the job in {path} has finished: there is nothing to do (--new-run begins its next run)")
        return 0
    # A host with a recovery path of its own has no other way to it, and only this user sees the environment of a step.
    ours |= job_token(ours)
    ours["MS_STOP_GRACE"] = _stop_grace(line.notice_s, ours)
    spares, scheduler = len(hosts) - line.nodes, reached_at(first, environment)
    commands = [
        (
            *(sys.executable, "-m", "recovery", "run", f"--nnodes={line.nodes}", f"--spares={spares}"),
            *(f"--node_rank={at}", f"--rdzv_endpoint={scheduler}:{here.port}", *line.run),
        )
        for at in range(len(hosts))
    ]
    again = f", started {here.restarts} times before" if here.restarts else ""
    console.say(
        f"job {here.job_id} of Slurm{again}: {line.nodes} hosts and {spares} spare: {', '.join(hosts)}"
    )
    steps = HostSteps(hosts, commands)
    code = asyncio.run(_run(steps, ours, outlive_script=spares > 0))
    if code and (why := _helped_by_requeue(steps, code, here.job_id)):
        return _requeue(here.job_id, code, why)
    return code


def _stop_grace(notice_s: int, environment: Mapping[str, str]) -> str:
    """What is left to the hosts from the notice on. With more they would leave before it, each by the end of Slurm's time, and nothing would requeue the job."""
    most = max(1, notice_s - _ENDS_IN_S)
    given = environment.get("MS_STOP_GRACE", "")
    if not given.isdecimal():
        # What is no number is refused by the launchers.
        return given or str(most)
    if int(given) > most:
        console.say(f"MS_STOP_GRACE={given}: --notice={notice_s} leaves {most} s", style="yellow")
    return str(min(int(given), most))


def _is_done(line: batch_script.Line, environment: Mapping[str, str]) -> bool:
    """A task of an array, and a job that was put back into the queue, find what an earlier one has finished. Whoever submits it again is asked what is meant."""
    repeats = environment.get("SLURM_ARRAY_TASK_ID") or environment.get("SLURM_RESTART_COUNT", "0") != "0"
    if not repeats or any(word in _NEXT_RUN for word in line.run):
        return False
    job = stored_advice.stored_job(environment)
    return job is not None and job.state is JobState.FINISHED


async def _run(steps: HostSteps, environment: Mapping[str, str], *, outlive_script: bool) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, steps, environment)
    return await steps.run(environment, outlive_script=outlive_script)


def _on_signal(number: signal.Signals, steps: HostSteps, environment: Mapping[str, str]) -> None:
    """Before a time limit only this script is told. Where Slurm ends a job it tells the steps by itself."""
    if steps.note_asked(number) and number is signal.SIGUSR1:
        # Of srun, SIGTERM kills the step.
        _tell_steps(environment["SLURM_JOB_ID"])


def _tell_steps(job_id: str) -> None:
    words = ["scancel", "--signal=TERM", job_id]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - Slurm's own
    if asked.returncode:
        console.say(f"the steps are not told that their time is over: {asked.stderr.strip()}", style="yellow")


def _helped_by_requeue(steps: HostSteps, code: int, job_id: int) -> str:
    """Why the job goes back into the queue; empty: it does not. `scancel` means the end."""
    if steps.asked_by is signal.SIGUSR1:
        return "its time is over"
    # Slurm tells the steps alone, and puts the job back at the end of its grace, unless it has failed before. Without a grace it does so at once.
    if code == _ASKED_TO_END and (when := job_record.preempted_at(job_record.ask(job_id))):
        return f"Slurm takes its hosts for another job since {when}"
    if steps.lost and code == ROWS["WAIT_TIMEOUT"].exit_code:
        return f"of the hosts that were lost ({', '.join(sorted(steps.lost))}) ranks are missing"
    return ""


def _requeue(job_id: int, code: int, why: str) -> int:
    """Slurm ends this script then."""
    if job_record.ask(job_id).get("Requeue") == "0":
        console.say(
            f"{why}: this job may not go back into the queue (--no-requeue, or JobRequeue=0 in slurm.conf); the next job of its chain goes on from what it has saved, or the same line, submitted again",
            style="yellow",
        )
        return code
    console.say(
        f"{why}: the job goes back into the queue (scontrol requeue), and goes on from what it has saved"
    )
    asked = subprocess.run(["scontrol", "requeue", str(job_id)], capture_output=True, text=True, check=False)  # noqa: S603, S607 - Slurm's own
    if asked.returncode:
        console.say(
            f"not put back into the queue: {asked.stderr.strip()}; submit it again, and it goes on",
            style="yellow",
        )
        return code
    signal.pause()
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], dict(os.environ)))  # noqa: TID251 - handed on to the hosts
    except RecoveryError as error:
        console.say(error.fact, style="bold red")
        sys.exit(error.exit_code)
