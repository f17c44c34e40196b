"""One step of Slurm's for each host of a job: each is a launcher, and the first one's end is the job's.

`srun` ends with 0 when a node fails, and a batch script ends with its own node. So what counts is how the launcher beside the scheduler ended;
any other step that ends while the job goes on is begun again on its host, where a spare one may have its ranks by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence

from recovery.launch import console

_PAUSES_S = (20.0, 10.0, 20.0, 40.0, 60.0)
"""Before the first, second ... further try. Before the first the job may end: its hosts do not end at once. A node that is down comes back in
minutes, and is asked by one refused `srun`."""
_WATCHERS = 2
"""Hosts that look for the batch script's. More would ask Slurm more often, and rarely are three lost at once."""
_WATCH_AGAIN_S = 60.0
_LOOK_S = 5.0
"""How often it is looked, behind the job's end, whether a host whose step goes on is still there."""


class HostSteps:
    """The steps of one job."""

    def __init__(self, hosts: Sequence[str], commands: Sequence[Sequence[str]]) -> None:
        """Nothing is started yet.

        Args:
            hosts: the scheduler's first, the spare ones last.
            commands: for each host, what runs there.
        """
        self._hosts, self._commands = hosts, commands
        self._running: dict[int, Process] = {}
        self._codes: dict[int, int] = {}
        """How the step of a host ended, the last time."""
        self._over = asyncio.Event()
        self.asked_by: signal.Signals | None = None
        """The signal by which the job was asked to end, the first one."""
        self.lost: set[str] = set()
        """Hosts whose step has ended while the job went on, or that were gone at its end."""

    def note_asked(self, number: signal.Signals) -> bool:
        """The job is asked to end. Gives whether this is the first time: then every rank saves a step."""
        if self.asked_by is not None:
            return False
        self.asked_by = number
        console.say(f"{number.name}: the job is asked to end on all hosts")
        return True

    async def run(self, environment: Mapping[str, str], *, outlive_script: bool = False) -> int:
        """Start them all. Gives how the scheduler's host ended, once all others have; where that is 0, how another one failed behind it.

        Args:
            environment: of the steps.
            outlive_script: Slurm lets the job run on when the host of this script is lost. Other hosts look for that then.
        """
        watched = range(1, min(1 + _WATCHERS, len(self._hosts))) if outlive_script else ()
        watching = [asyncio.create_task(self._watch(at, environment)) for at in watched]
        keeping = [asyncio.create_task(self._keep(at, environment)) for at in range(1, len(self._hosts))]
        try:
            await self._step(0, environment)
        finally:
            self._over.set()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await self._await_others(keeping, environment)
        counted = (code for at, code in sorted(self._codes.items()) if self._hosts[at] not in self.lost)
        return next((code for code in counted if code), 0)

    async def _keep(self, at: int, environment: Mapping[str, str]) -> None:
        """Keep the step of a host that is not the scheduler's."""
        host = self._hosts[at]
        for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            code = await self._step(at, environment)
            if self.asked_by is not None or await self._ends_within(pause_s):
                return
            self.lost.add(host)
            text = f"{host}: its step ended with {code} while the job goes on; it is begun again"
            console.say(text, style="yellow")

    async def _watch(self, at: int, environment: Mapping[str, str]) -> None:
        """Keep a watcher on a host (batch_watch.py). It says itself what there is to say."""
        options = ["--nodes=1", "--ntasks=1", f"--nodelist={self._hosts[at]}", f"--job-name=watch-{at}"]
        command = ("-m", "recovery.launch.slurm.batch_watch", environment["SLURM_JOB_ID"], f"{2 * at - 1}")
        while True:
            step = await asyncio.create_subprocess_exec(
                *("srun", *options, "--overlap", "--input=none", sys.executable, *command),
                env=dict(environment),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
            try:
                await step.wait()
            finally:
                # Slurm ends what is left of a step with its job.
                with contextlib.suppress(ProcessLookupError):
                    step.kill()
                await step.wait()
            await asyncio.sleep(_WATCH_AGAIN_S)

    async def _ends_within(self, wait_s: float) -> bool:
        try:
            await asyncio.wait_for(self._over.wait(), wait_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def _step(self, at: int, environment: Mapping[str, str]) -> int:
        """One step, to its end."""
        # The allocation is shared by the steps of its hosts and what a person starts there to look at it.
        options = ["--nodes=1", "--ntasks=1", f"--nodelist={self._hosts[at]}", f"--job-name=host-{at}"]
        options += ["--overlap", "--kill-on-bad-exit=0", "--input=none"]
        if "SLURM_CPUS_PER_TASK" in environment:
            # Which a step has not had of its script since Slurm 22.05.
            options.append(f"--cpus-per-task={environment['SLURM_CPUS_PER_TASK']}")
        step = await asyncio.create_subprocess_exec(
            "srun", *options, *self._commands[at], stdin=DEVNULL, env=dict(environment)
        )
        self._running[at] = step
        try:
            code = await step.wait()
        finally:
            del self._running[at]
        self._codes[at] = 128 - code if code < 0 else code
        return self._codes[at]

    async def _await_others(
        self, keeping: Sequence[asyncio.Task[None]], environment: Mapping[str, str]
    ) -> None:
        """A host may have an upload behind training. Of one that is gone `srun` waits for minutes."""
        while keeping and (await asyncio.wait(keeping, timeout=_LOOK_S))[1]:
            for at, step in list(self._running.items()):
                if not await _answers(self._hosts[at], environment):
                    self.lost.add(self._hosts[at])
                    console.say(
                        f"{self._hosts[at]} does not answer Slurm: its step is not waited for", style="yellow"
                    )
                    step.kill()


async def _answers(host: str, environment: Mapping[str, str]) -> bool:
    """Does a host answer, as far as Slurm says? `*` stands behind the state of one that does not."""
    asked = await asyncio.create_subprocess_exec(
        *("sinfo", "--noheader", "--Node", f"--nodes={host}", "--format=%T"),
        env=dict(environment),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    said = (await asked.communicate())[0].decode(errors="replace").split()
    return not any(state.endswith("*") or state.startswith("down") for state in said)
