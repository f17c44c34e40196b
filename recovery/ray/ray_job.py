"""A job on a Ray cluster: where its launchers run, which of them is begun again, and when the whole job is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from recovery import clock
from recovery.errors import ROWS, UsageError
from recovery.launch import console
from recovery.launch.credentials import job_token
from recovery.ray.host_agent import HostAgent, Place
from recovery.ray.job_shape import Shape, shape_of

_SCHEDULER_LOST = "the scheduler's node is lost"
_LOOK_S = 1.0
"""How often it is looked for nodes that are draining."""
_SAID_EVERY_MS = 30_000
_END_S = 60.0
"""How long the launchers may take to end where the driver is interrupted: as `MS_STOP_GRACE` and the end of the processes behind it."""


def run(
    line: str | Sequence[str],
    *,
    num_workers: int,
    workers_per_host: int = 1,
    resources_per_worker: Mapping[str, float] | None = None,
    spares: int = 0,
    recovery_path: str | os.PathLike[str] = "recovery",
) -> int:
    """Run a script on the nodes of the Ray cluster that this process is connected to.

    Each host is an actor on a node of its own, and runs `recovery run`. The first one has the scheduler. A lost node's ranks go to a spare host, or come back on whatever node Ray
    places its actor; they load what they can read there, so the recovery path and the checkpoints must be where all nodes see them. A node that is drained leaves behind a step
    that every rank has saved.

    Args:
        line: a script that every node has under this path, or what `recovery run` is given: its options, the script, the script's arguments.
        num_workers: ranks of the job.
        workers_per_host: ranks that share a node.
        resources_per_worker: as of Ray Train's ScalingConfig: `{"CPU": 1}` if nothing is said.
        spares: hosts that wait, each with as many processes, and take the ranks of one that is lost.
        recovery_path: where the job's state is.

    Returns:
        The job's exit code; 0: trained, and saved.

    Raises:
        UsageError: the numbers do not fit together, or Ray is not connected.
    """
    shape = shape_of(
        num_workers=num_workers,
        workers_per_host=workers_per_host,
        resources_per_worker=resources_per_worker,
        spares=spares,
    )
    if not ray.is_initialized():
        raise UsageError(
            field="ray",
            reason="is not connected to a cluster",
            next_step='Call ray.init(address="auto") first.',
        )
    words = [line] if isinstance(line, str) else list(line)
    return _Job(shape, words, Path(recovery_path).absolute()).run()


class _Job:
    """One job, over all its starts."""

    def __init__(self, shape: Shape, line: Sequence[str], path: Path) -> None:
        self._shape, self._line = shape, line
        variables = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(path)}
        ours = {name: value for name, value in os.environ.items() if name.startswith("MS_")}  # noqa: TID251 - handed on
        self._variables = {**ours, **variables}
        self._variables |= job_token(self._variables)
        self._group: PlacementGroup | None = None
        self._agents: list[Any] = []
        self._runs: dict[Any, int] = {}
        """By what is waited for: which host's launcher that is."""
        self._endpoint = ""
        self._nodes: dict[int, str] = {}
        """By host, as far as it was asked for."""
        self._noticed: set[str] = set()
        """Nodes whose launchers know that they are drained."""
        self._departed: dict[int, str] = {}
        """Hosts that have left such a node, by which."""
        self._lost = False
        """A node was lost in this start."""

    def run(self) -> int:
        """To its end. Gives its exit code."""
        while isinstance(ended := self._once(), str):
            console.say(f"{ended}: all hosts begin again, from what is saved", style="yellow")
        return ended

    def _once(self) -> int | str:
        """Start all hosts, and keep them until the scheduler's has ended. Gives the job's exit code, or why another start helps."""
        count = self._shape.nodes
        # A group of its own for each start: Ray puts none on a node that is drained.
        self._group = placement_group([dict(self._shape.resources)] * count, strategy="STRICT_SPREAD")
        try:
            self._wait_for(self._group.ready())
            self._agents = [self._agent(at) for at in range(count)]
            place: Place = self._wait_for(self._agents[0].where.remote())
            self._endpoint = f"{place.address}:{place.free_port}"
            for at in range(count):
                self._start(at)
            return self._keep()
        except ray.exceptions.RayActorError:
            return _SCHEDULER_LOST
        except (KeyboardInterrupt, SystemExit):
            self._stop()
            raise
        finally:
            self._end()

    def _keep(self) -> int | str:
        while True:
            ended, _ = ray.wait(list(self._runs), timeout=_LOOK_S)
            for reference in ended:
                at = self._runs.pop(reference)
                code = _code_of(reference)
                if at == 0:
                    return self._helped_by_another_start(code) or self._await_others(code or 0)
                self._begin_again(at, code)
            self._look_for_draining()

    def _helped_by_another_start(self, code: int | None) -> str:
        """Why; empty: it does not help. As on Slurm, whose queue does it there (launch/slurm/batch_step.py)."""
        if code is None:
            return _SCHEDULER_LOST
        if code and self._nodes.get(0) in self._noticed:
            return "the scheduler's node was drained"
        if self._lost and code == ROWS["WAIT_TIMEOUT"].exit_code:
            return "a node was lost, and its ranks are missing"
        return ""

    def _wait_for(self, reference: Any) -> Any:
        """It comes when Ray has the nodes."""
        said_ms = clock.monotonic_ms()
        while not ray.wait([reference], timeout=_LOOK_S)[0]:
            if clock.monotonic_ms() - said_ms >= _SAID_EVERY_MS:
                said_ms = clock.monotonic_ms()
                asked = f"{self._shape.nodes} nodes of Ray with {dict(self._shape.resources)} each"
                console.say(f"waiting for {asked}")
        return ray.get(reference)

    def _agent(self, at: int) -> Any:
        placed = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=at)
        amounts = dict(self._shape.resources)
        options: dict[str, Any] = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0)}
        if "memory" in amounts:
            options["memory"] = amounts.pop("memory")
        made = ray.remote(HostAgent).options(
            **options, resources=amounts, scheduling_strategy=placed, max_concurrency=4, max_restarts=0
        )
        return made.remote()

    def _start(self, at: int) -> None:
        words = self._shape.words(at, self._endpoint, self._line)
        self._nodes.pop(at, None)
        self._runs[self._agents[at].run.remote(words, self._variables, str(Path.cwd()))] = at

    def _begin_again(self, at: int, code: int | None) -> None:
        """A host other than the scheduler's has ended while the job goes on, or as it ends. One that departs is not back before its node is gone."""
        if self._ends_now():
            return
        departed = self._nodes.get(at, "")
        why = f"its launcher ended with {code}"
        if code is None:
            self._lost, why = True, "its node is lost"
        elif departed in self._noticed:
            why = "it has left its node"
        console.say(f"host {at}: {why}; it is begun again where Ray finds a node", style="yellow")
        if departed in self._noticed:
            self._departed[at] = departed
        else:
            self._place_again(at)

    def _place_again(self, at: int) -> None:
        self._agents[at] = self._agent(at)
        self._start(at)

    def _ends_now(self) -> bool:
        """Hosts do not end at once: does the scheduler's end too?"""
        first = [reference for reference, at in self._runs.items() if at == 0]
        return bool(ray.wait(first, timeout=10 * _LOOK_S)[0])

    def _look_for_draining(self) -> None:
        """A node that Ray drains has a deadline, or none."""
        draining: Mapping[str, int] = ray._private.state.state.get_draining_nodes()  # noqa: SLF001 - Ray's own libraries ask so
        for at in [at for at, node in self._departed.items() if node not in draining]:
            del self._departed[at]
            self._place_again(at)
        for node, deadline_ms in draining.items():
            if node in self._noticed:
                continue
            for at, agent in enumerate(self._agents):
                if self._node_of(at) == node:
                    self._noticed.add(node)
                    left_s = (deadline_ms - clock.wall_ms()) / 1000 if deadline_ms else 30.0
                    console.say(f"host {at}: Ray drains its node, within {left_s:.0f} s", style="yellow")
                    agent.note_departure.remote(left_s)

    def _node_of(self, at: int) -> str:
        """Where a host is; empty: nowhere yet."""
        if at not in self._nodes:
            asked = self._agents[at].where.remote()
            if not ray.wait([asked], timeout=_LOOK_S)[0]:
                return ""
            try:
                self._nodes[at] = ray.get(asked).node
            except ray.exceptions.RayError:
                return ""
        return self._nodes[at]

    def _await_others(self, code: int) -> int:
        """An upload of another host may go on behind training. Gives the job's exit code. A host that waits for a node has nothing to end."""
        running = [reference for reference, at in self._runs.items() if self._node_of(at)]
        codes = [code, *(_code_of(reference) for reference in running)]
        self._runs.clear()
        return next((one for one in codes if one), 0)

    def _stop(self) -> None:
        console.say("interrupted: every rank saves a step first")
        for agent in self._agents:
            agent.stop.remote()
        if self._runs:
            ray.wait(list(self._runs), num_returns=len(self._runs), timeout=_END_S)

    def _end(self) -> None:
        for agent in self._agents:
            ray.kill(agent)
        if self._group is not None:
            remove_placement_group(self._group)
        self._agents, self._runs, self._nodes, self._departed = [], {}, {}, {}
        self._group, self._lost = None, False


def _code_of(reference: Any) -> int | None:
    """How a launcher ended; None: its actor, or its node, was lost."""
    try:
        return int(ray.get(reference))
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None
