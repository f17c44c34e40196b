"""What the scheduler's machine knows, and the small pieces that its modules share. Nothing is decided here."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from recovery.core import messages as m
from recovery.core.causes import UNEXPLAINED, Cause
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, Generation, Incarnation, NodeId, Rank, RequestId, RunId
from recovery.core.policy import rollback
from recovery.core.policy.live import LiveSource
from recovery.core.policy.next_plan import CrashLoop
from recovery.core.programs import Program
from recovery.core.records import (
    EventKind,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    JobState,
    Record,
    TrainingEndRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.barrier import Barrier
from recovery.core.scheduler.copy_state import Copying, Uploading
from recovery.core.scheduler.hang_watch import HangWatch
from recovery.core.scheduler.job_states import ENDED, JobFact, next_state
from recovery.core.scheduler.node import Node, Slots
from recovery.core.scheduler.pending_facts import Facts
from recovery.core.scheduler.refused import BESIDE_SLOTS, Refusals, WaitingList
from recovery.core.scheduler.replica_watch import ReplicaWatch
from recovery.core.scheduler.straggler_watch import StragglerWatch


class LiveRollback:
    """Live rollback of the current generation: in whose memory the plan's state is, what the ranks have taken, and what is refused."""

    def __init__(self) -> None:
        """Each rank has its checkpoint."""
        self.sources: tuple[LiveSource, ...] = ()
        """In whose memories the plan found its state; none: each rank has its checkpoint."""
        self._of_rank: dict[Rank, LiveSource] = {}
        """Where there are several: the one that gives each rank its part."""
        self.spoken: set[Rank] = set()
        """Ranks that have said what they took of it."""
        self.firsts: dict[Rank, tuple[Rank, str]] = {}
        """By source: which rank has said first what it had taken there, and what."""
        self.refused: set[int] = set()
        """Steps whose state could not be taken, or was not the same on all ranks. Not stored: the next scheduler may try once more."""

    def source_of(self, rank: Rank) -> LiveSource | None:
        """The source that gives a rank its state; None: it has its checkpoint."""
        if self._of_rank or not self.sources:
            return self._of_rank.get(rank)
        return self.sources[0]

    def restore(self, sources: tuple[LiveSource, ...]) -> None:
        """The plan is that of an earlier process. What the ranks have taken they say again."""
        self.sources = sources
        self._of_rank = {rank: source for source in sources for rank in source.replicas}

    def begin(self, sources: tuple[LiveSource, ...], step: int) -> None:
        """A plan to `step` is made. What is newer is trained again: its states are others then than those that were refused."""
        self.restore(sources)
        self.spoken.clear()
        self.firsts.clear()
        self.refused = {refused for refused in self.refused if refused <= step}


class OpenOffer(NamedTuple):
    """A standby was asked to take a slot, and has not answered yet."""

    standby: NodeId
    until_ms: int
    """Then the next one is asked."""
    is_last: bool = False
    """Everybody has declined: this one takes the rank with what it can read, as the lost one would if it came back."""


class Decline(NamedTuple):
    """A standby could not take a slot."""

    reason: str
    newest: int | None
    """The newest step that it reads of the rank; 0: none; None: it has not said."""


class Vacancies:
    """Vacant slots, and the standbys that may take them. Nothing of it is stored: the next scheduler asks again.

    Changed by the modules of `membership` only.
    """

    def __init__(self) -> None:
        """No slot is offered."""
        self.offers: dict[str, OpenOffer] = {}
        """By the name of a vacant slot: which standby was asked to take it."""
        self.declined: dict[NodeId, dict[str, Decline]] = {}
        """By standby: the slots that it could not take, and why. Forgotten when it registers again, or says again what it can read."""
        self.reported_declines: dict[NodeId, set[tuple[str, str]]] = {}
        """By standby: which slots it could not take and why, as the log says already. Forgotten with the next plan, and when its next process comes."""
        self.pending_failure: set[NodeId] = set()
        """Lost nodes that their launchers have given up, and whose ranks a standby may still take: without one the job fails."""


STARTS_SENT = 64
"""Plans of which a node is sent where they began, some 40 bytes each: object storage keeps three steps, and those are not older."""
RUN_FINISHED = "its run finished"
"""Why a node has left, for people: it did its part to the end. If it does not know that, it is answered when it asks."""


class LostStore:
    """What is true while the job's store is missing, or may miss its end."""

    def __init__(self) -> None:
        """It is there, as far as anybody knows."""
        self.asks_until_ms: int | None = None
        """While it is built again: until when a node may come that knows more of a rank; None: nobody is waited for."""
        self.has_asked = False
        """That time is over."""
        self.takes_standbys = False
        """MS_TOPO_TIMEOUT is over, and nobody came for a place: who waits as a standby has it."""
        self.reported: dict[NodeId, m.JobHistory] = {}
        """What nodes have said of their past while it is built again, also those that are gone."""
        self.reported_generation = Generation(0)
        """The newest that a node has reported, gone or not: the store may have lost it, and its number is never given again."""
        self.thousands_skipped = 0
        """Of the numbers that its first plan leaves out (policy/rebuild.py)."""
        self.ends_scheduler = False
        """This scheduler ends because of it: nothing is decided any more, whatever still arrives."""


class DiskCommits:
    """When a step was committed on all ranks' disks last: schedules by time go by it."""

    def __init__(self) -> None:
        """Nobody knows: it was under an earlier process of the scheduler."""
        self._newest_ms: int | None = None
        self.since_ms: int | None = None
        """How long before the current plan it was: one number for all ranks, however late one is sent the plan. None: nobody knows."""

    def committed(self, now_ms: int) -> None:
        """A step is committed on all disks now."""
        self._newest_ms = now_ms

    def planned(self, now_ms: int, *, is_first: bool) -> None:
        """A plan is made. Before the first commit it is counted from the run's first plan."""
        if is_first:
            self._newest_ms = now_ms
        self.since_ms = None if self._newest_ms is None else now_ms - self._newest_ms


class SchedulerState:
    """Changed by the modules of this package only. `invariants.check` says what is always true of it."""

    def __init__(self, job: JobRecord, rules: Rules) -> None:
        """Start with a job and no nodes."""
        self.job, self.rules = job, rules
        self.nodes: dict[NodeId, Node] = {}
        """Changed by `put` alone."""
        self.slots = {role: Slots(forming=job.state is JobState.FORMING) for role in m.Role}
        """What is asked at each message, counted as it changes."""
        self.local_ranks: tuple[tuple[RunId, Generation], dict[Rank, tuple[int, int]]] | None = None
        """Of a generation, each rank's (local rank, local world size)."""
        self.speakers: dict[ConnectionId, NodeId] = {}
        """Whose current incarnation speaks on a connection."""
        self.checkpoints, self.live, self.facts = CheckpointIndex(rules.world_size), LiveRollback(), Facts()
        self.copying, self.uploading, self.disk_commits = Copying(), Uploading(), DiskCommits()
        self.generations: list[GenerationRecord] = []
        """Of this run, oldest first."""
        self.rendezvous: m.Rendezvous | None = None
        """Where rank 0 of the current generation listens."""
        self.outcome = m.JobOutcome.FINISHED if job.state is JobState.FINISHED else m.JobOutcome.JOB_FAILED
        """How the job ended; sent once it has."""
        self.ends_ms = 0
        """When this process ends, where the job has ended."""
        self.deadline_ms: int | None = None
        """When the wait for all ranks ends; None while nobody waits, or for ever."""
        self.waits_since_ms: int | None = None
        """When the newest wait for all ranks began; None: there was none under this process."""
        self.crash_loop: CrashLoop | None = None
        """The data plane broke before anybody knew whose fault it was, and how often in a row; None: the last failure's cause is known."""
        self.barrier: Barrier | None = None
        """At which all ranks stop: the one under way, or the last one; None: there was none."""
        self.notices, self.refused_leaves = 0, set[tuple[NodeId, Incarnation]]()
        """How often somebody or something has asked for ranks, or the whole job, to leave: how many `drain_ended` this run has. And the incarnations
        for which no rank could stop."""
        self.training_end: TrainingEndRecord | None = None
        """Where training of this run ends, as a script has asked; None: behind its last epoch."""
        self.archived_jobs: frozenset[str] = frozenset()
        """Jobs whose state a person has archived in this path: a worker that knows one of them may start over."""
        self.differing = set[tuple[Program, Program]]()
        """Of two hosts, and said."""
        self.vacancies, self.refusals, self.store_rebuild = Vacancies(), Refusals(), LostStore()
        self.hangs, self.stragglers, self.replicas = HangWatch(), StragglerWatch(), ReplicaWatch()
        self.waiting = WaitingList(
            at_most=rules.worker_count + rules.server_count + rules.standby_count + BESIDE_SLOTS
        )
        """The processes that were refused for now, and are answered when their time has come."""

    # --- looking -------------------------------------------------------------------------------------------------------

    @property
    def job_ended(self) -> bool:
        """Is the job over?"""
        return self.job.state in ENDED

    def has_slot(self, node: Node) -> bool:
        """Does it hold one of the slots of its role?"""
        return self.slots[node.record.role].has_slot(node.record, node.slot)

    def slot_holders(self, role: m.Role) -> list[Node]:
        """The nodes of a role that hold a slot."""
        return [node for node in self.nodes.values() if node.record.role is role and self.has_slot(node)]

    def holder(self, slot: str, role: m.Role = m.Role.WORKER) -> Node | None:
        """The node that holds the name of a slot, here or not."""
        return self.nodes.get(self.slots[role].holders.get(slot, NodeId("")))

    def slot_count(self, role: m.Role) -> int:
        """How many slots a role has."""
        return self.rules.worker_count if role is m.Role.WORKER else self.rules.server_count

    @property
    def workers(self) -> list[Node]:
        """The nodes of the world."""
        return self.slot_holders(m.Role.WORKER)

    def speaker(self, connection: ConnectionId) -> Node | None:
        """The node whose current incarnation speaks on this connection, if any."""
        node = self.nodes.get(self.speakers.get(connection, NodeId("")))
        return node if node is not None and node.connection == connection else None

    def of_this_run(self, held: tuple[m.HeldCheckpoint, ...]) -> tuple[m.HeldCheckpoint, ...]:
        """Leave out what another run wrote."""
        return tuple(checkpoint for checkpoint in held if checkpoint.run == self.job.run)

    @property
    def knows_nothing(self) -> bool:
        """Has this job never had a plan? Then it may have taken another job's place."""
        return self.job.state is JobState.FORMING and not self.job.generation and self.job.run == 1

    @property
    def builds_again(self) -> bool:
        """Is this the scheduler of a job whose store may be lost, and asks the workers what they know?"""
        return self.rules.rebuild_store and self.knows_nothing

    def held_of_this_run(self, ready: m.Ready, rank: Rank) -> tuple[m.HeldCheckpoint, ...]:
        """What a worker holds of this job and run, of one rank. What it knows of its past is of the rank that it had then."""
        past = ready.past
        if past is None or past.job != self.job.job:
            return self.of_this_run(ready.held)
        return self.of_this_run(past.held) if past.rank == rank else ()

    def copies_of_this_run(self, ready: m.Ready) -> list[m.HeldCopy]:
        """What a node holds of other ranks, of this job and run, that leads to where training is now."""
        past = ready.past if ready.past is not None and ready.past.job == self.job.job else None
        copies = ready.copies if past is None else past.copies
        of_lineage = rollback.in_lineage(
            self.of_this_run(tuple(copy.checkpoint for copy in copies)), self.generations
        )
        return [copy for copy in copies if copy.checkpoint in of_lineage]

    def held_by(self, ready: m.Ready, rank: Rank) -> tuple[m.HeldCheckpoint, ...]:
        """What a worker holds of a rank of this job and run that leads to where training is now."""
        return rollback.in_lineage(self.held_of_this_run(ready, rank), self.generations)

    @property
    def newest_starts(self) -> tuple[m.GenerationStart, ...]:
        """Where the newest plans of this run began, as a node is sent it."""
        return tuple(rollback.start_of(record) for record in self.generations[-STARTS_SENT:])

    # --- changing ------------------------------------------------------------------------------------------------------

    def put(self, node: Node) -> None:
        """Take in a node, in the place of an earlier incarnation of its id."""
        earlier = self.nodes.get(node.record.node_id)
        if earlier is not None:
            earlier.count_in(None)
            node.earlier = earlier if earlier.record.cause in UNEXPLAINED else None
            earlier.earlier = None
        self.nodes[node.record.node_id] = node
        node.count_in(self.slots[node.record.role])

    def disconnect(self, node: Node) -> ConnectionId | None:
        """Nobody speaks for the node any more; gives the connection on which somebody did."""
        connection, node.connection = node.connection, None
        if connection is not None:
            del self.speakers[connection]
        return connection

    def change_job(
        self,
        fact: JobFact,
        *,
        reason: str = "",
        cause: Cause | None = Cause.OTHER,
        about: str = "",
        generation: Generation | None = None,
        run: RunId | None = None,
    ) -> JobRecord:
        """Move the job as its table says, and give the row to persist. `cause` None: cause and node stay those of what failed first."""
        was_forming = self.job.state is JobState.FORMING
        self.job = msgspec.structs.replace(
            self.job,
            state=next_state(self.job.state, fact),
            reason=reason,
            cause=self.job.cause if cause is None else cause,
            about=self.job.about if cause is None else about,
            generation=self.job.generation if generation is None else generation,
            run=self.job.run if run is None else run,
        )
        is_forming = self.job.state is JobState.FORMING
        if is_forming != was_forming:
            # What a slot is has changed, so everybody is counted again.
            for slots in self.slots.values():
                slots.forming = is_forming
            for node in self.nodes.values():
                node.count()
        self.waiting.note_all()
        return self.job

    def name_cause(self, reason: str, cause: Cause, about: str) -> tuple[JobRecord, GenerationRecord]:
        """The end of the interrupted generation is explained by what is known now; give the rows to persist."""
        self.generations[-1] = msgspec.structs.replace(self.generations[-1], ended=reason)
        job = self.change_job(JobFact.CAUSE_FOUND, reason=reason, cause=cause, about=about)
        return job, self.generations[-1]

    # --- building ------------------------------------------------------------------------------------------------------

    def answer(self, node: Node, request_id: RequestId, records: list[Record], *more: Answer) -> Persist:
        """Acknowledge a request behind its write, and remember the answer for a repeat."""
        assert node.connection is not None, "it just spoke"
        received = m.Received(request_id=request_id)
        node.remember(request_id, received, at_most=self.rules.requests_remembered)
        return Persist(tuple(records), (Answer(node.connection, received), *more))

    def to_all(self, message: m.FromScheduler) -> tuple[Answer, ...]:
        """One answer to every connected node."""
        return tuple(
            Answer(node.connection, message) for node in self.nodes.values() if node.connection is not None
        )

    def incarnation_record(self, node: Node, *, ended: str = "") -> IncarnationRecord:
        """The row of a node's current incarnation."""
        record = node.record
        return IncarnationRecord(
            node_id=record.node_id,
            incarnation=record.incarnation,
            # Another one may have taken its rank meanwhile.
            rank=node.held_rank if ended else record.rank,
            host=record.host,
            pid=record.pid,
            run=self.job.run,
            ended=ended,
        )

    def event(
        self,
        kind: EventKind,
        *,
        incarnation: Incarnation | None = None,
        generation: Generation | None = None,
        step: int | None = None,
        reason: str = "",
        details: str = "",
    ) -> EventRecord:
        """An event of the job."""
        return EventRecord(
            kind=kind,
            run=self.job.run,
            incarnation=incarnation,
            generation=generation,
            step=step,
            reason=reason,
            details=details,
            because=self.job.reason if kind is not EventKind.GENERATION_INTERRUPTED else "",
        )

    def node_event(
        self, kind: EventKind, node: Node, *, step: int | None = None, reason: str = "", details: str = ""
    ) -> EventRecord:
        """An event of one node. It names the first failure when it follows from one."""
        return EventRecord(
            kind=kind,
            node_id=node.record.node_id,
            rank=node.record.rank,
            incarnation=node.record.incarnation,
            run=self.job.run,
            generation=self.job.generation,
            step=step,
            reason=reason,
            details=details,
            because=self.job.reason,
        )
