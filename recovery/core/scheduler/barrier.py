"""A barrier: all ranks stop at one step. Its states, the facts that move it, what is asked of ranks, and what their answers come to.

Every rank is asked where it is; a step just ahead of the foremost is named; each rank stops there and saves, or says that it has passed
it: then a later one is named, twice as far ahead. What all ranks stop for follows from it: a rank is handed over or the job ends
(barrier_ends.py), or training does (training_end.py). The docs draw the table of its moves, and a test walks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from recovery.core.barrier_messages import GoOn, JobSaved, Position, SaveAt
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, Generation, NodeId, RequestId
from recovery.core.policy import ranks
from recovery.core.scheduler.node import Node

RANK_HANDED_OVER = "its rank is handed over"
"""How the reason of a node begins that has left because a standby takes its rank."""


class BarrierState(str, Enum):
    """How far all ranks are on their way to one step, and what follows there."""

    ASKING = "asking"
    """Every rank was asked where it is."""
    AGREEING = "agreeing"
    """Every rank was asked to save and stop at one step, which none may have passed."""
    SAVING = "saving"
    """All will stop there; the step is waited for, and its checkpoints."""
    HANDING_OVER = "handing over"
    """All ranks hold that step: a rank that departs has left, and a standby is to take the rank."""
    ENDED = "ended"
    """What all ranks stopped for is done, or it was given up."""


NEXT_STATES: dict[BarrierState, frozenset[BarrierState]] = {
    BarrierState.ASKING: frozenset({BarrierState.AGREEING, BarrierState.SAVING, BarrierState.ENDED}),
    BarrierState.AGREEING: frozenset({BarrierState.AGREEING, BarrierState.SAVING, BarrierState.ENDED}),
    BarrierState.SAVING: frozenset({BarrierState.HANDING_OVER, BarrierState.ENDED}),
    BarrierState.HANDING_OVER: frozenset({BarrierState.ENDED}),
    BarrierState.ENDED: frozenset(),
}
"""All moves. Each state but the last may be given up; all ranks agree on a later step as often as one has passed the step that was named."""


class Barrier:
    """One stop of all ranks. Nothing of it is stored but its events; it does not outlive its generation, but for a hand-over itself.

    Whoever asks for one says who departs, why, and how long it may take: a notice that has a deadline of its own comes in here, too.
    """

    def __init__(self, number: int, generation: Generation, reason: str) -> None:
        """Every rank is asked where it is. Numbers begin with 1 in each process."""
        self.number, self.generation, self.reason = number, generation, reason
        self.state = BarrierState.ASKING
        """Changed by `move` alone."""
        self.departing: dict[NodeId, RequestId | None] = {}
        """Whose ranks are to be handed over, each with the request that waits for the end; None: it did not ask itself."""
        self.left_hosts: set[str] = set()
        """No standby of these takes a rank."""
        self.launchers: dict[ConnectionId, RequestId] = {}
        """Those that wait for it to end the job: where, and what they asked."""
        self.leaving: dict[ConnectionId, RequestId] = {}
        """Launchers whose host is to be taken away, which wait for what becomes of the ranks there: where, and what they asked."""
        self.ends_training = False
        """A script ends the training of all ranks at the step: nothing is saved for it, and nobody departs."""
        self.last_step = 0
        """Behind which a rank's loop has come to its end by itself: the others follow it there, and no further. 0: none has."""
        self.wait_ms = self.until_ms = 0
        """How long it may take, and when it has had its time, on the monotonic clock. A rank that waits at the step waits a little longer."""
        self.standbys_due_ms = 0
        """Until then nobody is missed who would take a rank: the process that asked may be one of all that were."""
        self.step = 0
        """At which all are asked to stop; 0: none is chosen yet."""
        self.margin = 1
        """How many steps behind the foremost rank that is. Doubled when it was too short: a step may be shorter than a message's way."""
        self.answers: dict[NodeId, Position] = {}
        """By rank's node: what it has said about `step`."""
        self.connections: dict[NodeId, ConnectionId | None] = {}
        """By rank's node: where it was asked."""
        self.spoiled = ""
        """Why steps behind `step` were, or may have been, trained by a rank that should have waited there; empty: none was."""
        self.is_done = self.all_here = False
        """Said of one that ended: it was not given up; no rank was missing, so that what ends behind the end of the job was ended."""
        self.outcome = ""
        """How it ended, for people; empty before."""

    @property
    def is_under_way(self) -> bool:
        """Has it not ended?"""
        return self.state is not BarrierState.ENDED

    @property
    def is_open(self) -> bool:
        """May it still be given up as if nothing had been?"""
        return self.state not in (BarrierState.HANDING_OVER, BarrierState.ENDED)

    @property
    def ends_job(self) -> bool:
        """Do launchers end all processes behind it? Then it needs no standby, and nobody takes a rank."""
        return bool(self.launchers)

    @property
    def leaves_anyway(self) -> bool:
        """Was every process that departs asked to end by its system, whatever becomes of its rank?"""
        return bool(self.departing) and None not in self.departing.values()

    @property
    def handed_over(self) -> bool:
        """Has a standby the rank, and was no step lost?"""
        return self.is_done and not (self.ends_job or self.ends_training)

    @property
    def saved(self) -> bool:
        """Has every rank saved `step`, and does it wait there for the end of the job?"""
        return self.is_done and self.ends_job and not self.ends_training

    @property
    def names(self) -> str:
        """Who departs, for people."""
        return ", ".join(sorted(self.departing, key=ranks.natural_key))

    def question(self, node_id: NodeId) -> SaveAt:
        """What this rank is asked now."""
        return SaveAt(
            drain=self.number,
            generation=self.generation,
            step=self.step,
            wait_ms=self.wait_ms,
            ends_training=self.ends_training,
            leaves=self.ends_job or node_id in self.departing,
        )

    def move(self, to: BarrierState) -> None:
        """Follow the table."""
        assert to in NEXT_STATES[self.state], f"a barrier that is {self.state.value} is never {to.value} next"
        self.state = to

    def ask(self, workers: list[Node], step: int) -> Persist:
        """Ask every rank whether it stops at this step; 0: where it is."""
        self.step, self.answers = step, {}
        self.connections = {node.record.node_id: node.connection for node in workers}
        return tell(workers, self.question)

    def ask_again(self, nodes: list[Node]) -> Persist:
        """Ask these as if they had not been: what they have said, or heard, may be lost."""
        for node in nodes:
            self.answers.pop(node.record.node_id, None)
            self.connections[node.record.node_id] = node.connection
        return tell(nodes, self.question)

    def take(self, node_id: NodeId, at: Position, world_size: int) -> int:
        """A rank has answered what is asked. Gives a later step at which all are to be asked to stop; 0: none."""
        self.answers[node_id] = at
        if self.state is BarrierState.SAVING or len(self.answers) < world_size:
            return 0
        # A rank that was only asked where it is stops nowhere, whatever it says.
        if self.step and all(one.stops for one in self.answers.values()):
            self.move(BarrierState.SAVING)
            return 0
        if self.step:
            self.margin *= 2
        self.move(BarrierState.AGREEING)
        return max(one.passed for one in self.answers.values()) + self.margin

    def reconnected(self, workers: list[Node]) -> list[Node]:
        """Ranks that are on another connection than they were asked on, or on none: they wait at no step any more."""
        return [node for node in workers if self.connections.get(node.record.node_id) != node.connection]

    def note_stop(self, generation: Generation, step: int) -> None:
        """A rank says how far it was when its generation ended."""
        if self.state is BarrierState.HANDING_OVER and generation == self.generation and step > self.step:
            self.spoiled = f"a rank had not waited: it trained on to step {step}"

    def note_back(self, node_id: NodeId) -> None:
        """A node registers that has left for a standby: one that had waited long enough has trained on, or will have."""
        if self.state is BarrierState.HANDING_OVER and node_id in self.departing:
            why = f"{node_id} connected again before it had heard that: it may have trained on"
            self.spoiled = self.spoiled or why

    def end(self, outcome: str, *, is_done: bool) -> None:
        """It is over, and this is why; not done, it was given up."""
        self.move(BarrierState.ENDED)
        self.is_done, self.outcome = is_done, outcome

    def job_saved(self, request: RequestId, durable_step: int) -> JobSaved:
        """What a launcher hears that has asked for the end of the job. `durable_step`: the newest that lies on all ranks' disks."""
        if self.saved:
            return JobSaved(request_id=request, step=self.step)
        why = self.outcome[:1024] or f"a rank is being handed over at step {self.step}"
        return JobSaved(request_id=request, step=durable_step, obstacle=why)

    def host_left(self, request: RequestId, durable_step: int) -> JobSaved:
        """What a launcher hears whose host is to be taken away. `durable_step`: as for `job_saved`."""
        obstacle = "" if self.is_done else self.outcome[:1024]
        return JobSaved(request_id=request, step=durable_step, obstacle=obstacle)


def tell(nodes: Iterable[Node], message: Callable[[NodeId], SaveAt | GoOn]) -> Persist:
    """Say it to these ranks in the order of what is written: behind the plan of this generation, which a rank must know first."""
    answers = (
        Answer(node.connection, message(node.record.node_id)) for node in nodes if node.connection is not None
    )
    return Persist((), tuple(answers))
