"""The scheduler's machine: one place decides, everything else carries out.

`handle(stimulus, now_ms) -> effects`, no I/O. The job's life (docs/architecture.md draws it):

    FORMING -> RUNNING(g) -> INTERRUPTED(g) -> [full house] -> plan -> RUNNING(g+1) ... -> FINISHED | FAILED

Who is let in: admission.py. How generations and the job begin and end: generations.py. Who holds which checkpoint: coordinator.py.
Who is here: liveness.py. What ranks say of their checkpoints: checkpoint_messages.py. Here: what each message means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from typing_extensions import assert_never

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist, SetTimer
from recovery.core.ids import ConnectionId, Generation, Incarnation, RequestId, RunId
from recovery.core.records import (
    CheckpointRecord,
    EventKind,
    EventRecord,
    GenerationRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    Record,
    RunRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler import checkpoint_messages, generations, liveness, lost_store
from recovery.core.scheduler.effects import CloseConnection, SchedulerEffect, Send
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.registration import job_fault_of, register
from recovery.core.scheduler.state import WINDOW_NOTE_MS, SchedulerState
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived, SchedulerStimulus, TimerFired


class SchedulerMachine:
    """The cluster of one job."""

    def __init__(self, job: JobRecord, rules: Rules) -> None:
        """Start empty.

        Args:
            job: the job's row, with the scheduler incarnation of this life.
            rules: durations and limits.
        """
        self.table = SchedulerState(job, rules)

    # --- life --------------------------------------------------------------------------------------------------------

    def restore(
        self,
        nodes: tuple[NodeRecord, ...],
        generations: tuple[GenerationRecord, ...],
        checkpoints: tuple[CheckpointRecord, ...],
    ) -> None:
        """Take over what an earlier life of the scheduler stored. Called before `start`."""
        table, run = self.table, self.table.job.run
        table.generations = [record for record in generations if record.run == run]
        table.coordinator.load((record for record in checkpoints if record.run == run), table.generations)
        for record in nodes:
            table.put(Node(record, heard_ms=0))

    def start(self, now_ms: int) -> list[SchedulerEffect]:
        """Begin to live: whoever was alive gets one lease to come back, deadlines start anew."""
        table = self.table
        first = table.job.scheduler_incarnation == 1
        kind = EventKind.SCHEDULER_STARTED if first else EventKind.SCHEDULER_RESTARTED
        records: list[Record] = []
        if table.job.state is JobState.FINISHED and all(_has_left(node) for node in table.nodes.values()):
            records += generations.begin_run(table)
        if table.job.state is JobState.FAILED:  # relaunched on purpose: the same run, one more try
            ranks = {node.record.rank for node in table.nodes.values() if node.record.role is m.Role.WORKER}
            met = bool(table.job.generation) and len(ranks - {None}) == table.rules.world_size
            # a rebuilt job may have a generation and not all its ranks yet
            table.change_job(JobState.INTERRUPTED if met else JobState.FORMING, reason=table.job.reason)
        if not table.ended:
            records.append(RunRecord(run=table.job.run))
        records += [
            table.job,
            table.event(kind, incarnation=table.job.scheduler_incarnation),
        ]
        silent = [node.record for node in table.nodes.values() if self._await_return(node, now_ms)]
        effects: list[SchedulerEffect] = [Persist((*records, *silent))]
        effects += [
            SetTimer(f"grace:{record.node_id}", table.nodes[record.node_id].suspect_until_ms)
            for record in silent
        ]
        if any(node.window_ends_ms > now_ms for node in table.nodes.values()):
            effects.append(SetTimer("windows", now_ms + WINDOW_NOTE_MS))
        return effects + self._go_on(now_ms)

    def _await_return(self, node: Node, now_ms: int) -> bool:
        """What the monotonic clock of the earlier life said is gone: apply what was left, never more than a full window.

        Gives whether the node is suspect until it is heard again; whoever looks at the files is told so too.
        """
        node.heard_ms = now_ms
        node.window_ends_ms = now_ms + min(node.record.rejoin_left_ms, self.table.rules.rejoin_window_ms)
        if node.record.state not in (NodeState.LIVE, NodeState.SUSPECT):
            return False
        if node.record.state is NodeState.LIVE:
            node.move(
                NodeState.SUSPECT, reason=node.record.reason or "not heard since the scheduler restarted"
            )
        node.suspect_until_ms = now_ms + self.table.rules.lease_ms
        return True

    def _go_on(self, now_ms: int) -> list[SchedulerEffect]:
        table = self.table
        if table.job.state is JobState.FINISHED:
            return [SetTimer("farewell", now_ms + table.rules.lease_ms)]
        if table.job.state in (JobState.FORMING, JobState.INTERRUPTED):
            return generations.wait_for_full_house(table, now_ms)
        gone = [node for node in table.workers if node.record.state in (NodeState.LOST, NodeState.LEFT)]
        if gone:  # the earlier life died between writing the loss and ending the generation
            return generations.interrupt(
                table, f"{gone[0].record.node_id} lost: {gone[0].record.reason}", now_ms
            )
        return []

    def handle(self, stimulus: SchedulerStimulus, now_ms: int) -> list[SchedulerEffect]:
        """Take one stimulus and say what is to be done, in order."""
        if self.table.is_over:
            return []
        if isinstance(stimulus, MessageReceived):
            return self._on_message(stimulus, now_ms)
        if isinstance(stimulus, ConnectionLost):
            return liveness.connection_lost(self.table, stimulus, now_ms)
        if isinstance(stimulus, TimerFired):
            return liveness.timer_fired(self.table, stimulus, now_ms)
        assert_never(stimulus)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _on_message(self, received: MessageReceived, now_ms: int) -> list[SchedulerEffect]:
        message, connection, table = received.message, received.connection, self.table
        if isinstance(message, m.Register):
            return self._on_register(received, message, now_ms)
        if isinstance(message, m.Exited):
            heard = CloseConnection(connection, "heard")
            return [
                *liveness.exit_seen(table, message, now_ms),
                *([] if connection in table.speakers else [heard]),
            ]
        node = table.speaker(connection)
        if node is None:
            return [
                CloseConnection(connection, "not registered")
            ]  # a fenced life, or a stranger: no effect at all
        node.heard_ms = now_ms
        answer = node.answers.get(getattr(message, "request_id", RequestId("")))
        if answer is not None:  # a repeat: the same answer, behind the write that the first one waited for
            return [Persist((), (Answer(connection, answer),))]
        if node.record.state is NodeState.LEFT:
            return []  # it has said its last word
        if table.ended and not isinstance(message, (m.Heartbeat, m.CheckpointReport)):
            return [
                Persist((), (Answer(connection, self._ending()),))
            ]  # a file that is there counts, whenever it is reported
        handlers: dict[type, Callable[[Node, Any, int], list[SchedulerEffect]]] = {
            m.Heartbeat: self._on_heartbeat,
            m.Ready: partial(checkpoint_messages.on_ready, table),
            m.CheckpointReport: partial(checkpoint_messages.on_checkpoint_report, table),
            m.CheckpointInvalid: partial(checkpoint_messages.on_checkpoint_invalid, table),
            m.RendezvousOpen: self._on_rendezvous_open,
            m.StateLoaded: self._on_begun,
            m.FirstStep: self._on_begun,
            m.CollectiveFailed: self._on_collective_failed,
            m.Failure: self._on_failure,
            m.Done: self._on_done,
            m.Leave: self._on_leave,
        }
        return handlers[type(message)](node, message, now_ms)

    def _on_register(
        self, received: MessageReceived, message: m.Register, now_ms: int
    ) -> list[SchedulerEffect]:
        table, connection = self.table, received.connection
        if connection in table.speakers:
            return [CloseConnection(connection, "registered already on this connection")]
        other = lost_store.of_another_job(table, received, message)
        if other is not None:
            return other
        if table.ended and job_fault_of(table, message) is None:
            return self._too_late(connection, message)
        effects = register(table, received, now_ms)
        node = table.speaker(connection)
        if node is None:
            return effects  # refused
        if table.rules.heartbeat_enabled:
            effects.append(liveness.next_lease_check(self.table, node))
        return [
            *effects,
            *self._tell_where_we_are(node, message, now_ms),
            *generations.try_open(table, now_ms),
        ]

    def _too_late(self, connection: ConnectionId, message: m.Register) -> list[SchedulerEffect]:
        """The job is over and so is this scheduler, in a moment: a run begun now would wait for those who were told to end.

        Only a scheduler that starts begins the next run (`start`). A process that comes now is told, and hangs up when it has it.
        """
        table = self.table
        node = table.nodes.get(message.node_id)
        was_in = bool(message.generation) or message.token is not None
        missed_it = node is not None and not _has_left(node)
        records: list[Record] = generations.part(table, [node] if node is not None else [])
        if not was_in and not missed_it and table.note_refusal(message.node_id, "JOB_ENDED"):
            reason = f"JOB_ENDED: it came when the job had ended ({table.job.reason}); the next scheduler takes it in"
            records.append(
                EventRecord(
                    kind=EventKind.NODE_REFUSED, node_id=message.node_id, run=table.job.run, reason=reason
                )
            )
        return [Persist(tuple(records), (Answer(connection, self._ending()),))]

    def _tell_where_we_are(self, node: Node, register: m.Register, now_ms: int) -> list[SchedulerEffect]:
        """Bring a node that (re)connected to where the job stands. Behind the write that admits it, so in order."""
        table, connection, its_generation = self.table, node.connection, register.generation
        assert connection is not None, "it just registered"
        if node.record.role is m.Role.SERVER:
            return []
        ahead: list[SchedulerEffect] = []
        if table.job.state is JobState.RUNNING and its_generation > table.job.generation:
            reason = f"{node.record.node_id} was told generation {its_generation}, which the store has lost"
            ahead = generations.interrupt(table, reason, now_ms)
        if table.job.state in (JobState.FORMING, JobState.INTERRUPTED):
            over = Generation(max(table.job.generation, its_generation))
            interrupt = m.Interrupt(generation=over, reason=table.job.reason[:1024])
            return [*ahead, *([Persist((), (Answer(connection, interrupt),))] if its_generation else [])]
        if (
            not its_generation and not register.incarnation
        ):  # a fresh process where a training one was: it replaced itself
            return generations.interrupt(
                table, f"{node.record.node_id} came back without its training state", now_ms
            )
        told: list[m.FromScheduler] = []
        if its_generation != table.job.generation:
            told.append(generations.rollback_for(table, node, generations.local_places(table)))
        node.told_generation = table.job.generation
        if table.rendezvous is not None:
            told.append(table.rendezvous)
        return [Persist((), tuple(Answer(connection, message) for message in told))]

    def _on_heartbeat(self, node: Node, beat: m.Heartbeat, now_ms: int) -> list[SchedulerEffect]:
        assert node.connection is not None, "it just spoke"
        if beat.generation == self.table.job.generation:
            node.record = msgspec.structs.replace(node.record, step=beat.step)
        return [Send(node.connection, m.HeartbeatAck(sequence=beat.sequence))]

    def _on_rendezvous_open(self, node: Node, opened: m.RendezvousOpen, now_ms: int) -> list[SchedulerEffect]:
        table = self.table
        if opened.generation != table.job.generation or table.job.state is not JobState.RUNNING:
            return []
        known = table.rendezvous is not None and table.rendezvous.address == opened.address
        table.rendezvous = m.Rendezvous(generation=opened.generation, address=opened.address)
        effects: list[SchedulerEffect] = [
            Send(other.connection, table.rendezvous)
            for other in table.workers
            if other.connection is not None and other is not node
        ]
        if not known:
            effects.append(
                Persist((table.node_event(EventKind.RENDEZVOUS_OPENED, node, reason=opened.address),))
            )
        return effects

    def _on_begun(self, node: Node, begun: m.StateLoaded | m.FirstStep, now_ms: int) -> list[SchedulerEffect]:
        if begun.generation != self.table.job.generation:
            return []
        node.record = msgspec.structs.replace(node.record, step=begun.step)
        loaded = isinstance(begun, m.StateLoaded)
        kind = EventKind.STATE_LOADED if loaded else EventKind.FIRST_STEP_DONE
        return [Persist((self.table.node_event(kind, node, step=begun.step),))]

    def _on_collective_failed(
        self, node: Node, failed: m.CollectiveFailed, now_ms: int
    ) -> list[SchedulerEffect]:
        if failed.generation != self.table.job.generation or self.table.job.state is not JobState.RUNNING:
            return []
        reason = f"{node.record.node_id}: the data plane broke at step {failed.step}: {failed.reason}"
        effects = generations.interrupt(self.table, reason, now_ms)
        self.table.because_is_guess = True  # whose fault it was is usually known a moment later
        return effects

    def _on_failure(self, node: Node, failure: m.Failure, now_ms: int) -> list[SchedulerEffect]:
        """Its own code raised. It counts as lost when it hangs up, which it does as soon as it has this answer."""
        node.record = msgspec.structs.replace(
            node.record, reason=f"its own code raised {failure.error}"[:1024]
        )
        event = self.table.node_event(
            EventKind.NODE_FAILED, node, step=failure.step, reason=failure.error, details=failure.traceback
        )
        return [self.table.answer(node, failure.request_id, [node.record, event])]

    def _on_done(self, node: Node, done: m.Done, now_ms: int) -> list[SchedulerEffect]:
        table = self.table
        if done.generation != table.job.generation or table.job.state is not JobState.RUNNING:
            return []  # its generation is over: it is interrupted, comes back and says it again
        node.done = True
        node.record = msgspec.structs.replace(node.record, step=done.step)
        effects: list[SchedulerEffect] = [table.answer(node, done.request_id, [node.record])]
        if table.seats[m.Role.WORKER].all_done:
            reason = f"all {table.rules.world_size} ranks are done at step {done.step}"
            effects += generations.end(table, m.JobOutcome.FINISHED, reason, now_ms)
        return effects

    def _on_leave(self, node: Node, leave: m.Leave, now_ms: int) -> list[SchedulerEffect]:
        table = self.table
        record = node.move(NodeState.LEFT, reason=leave.reason)
        event = table.node_event(EventKind.NODE_LEFT, node, reason=leave.reason)
        effects: list[SchedulerEffect] = [table.answer(node, leave.request_id, [record, event])]
        if record.role is m.Role.WORKER:
            effects += generations.interrupt(table, f"{record.node_id} left: {leave.reason}", now_ms)
        return effects

    def _ending(self) -> m.JobEnded:
        return m.JobEnded(outcome=self.table.outcome, reason=self.table.job.reason[:1024])


def _has_left(node: Node) -> bool:
    return node.record.state is NodeState.LEFT


def new_job(job: str, rules: Rules) -> JobRecord:
    """The row of a job that nobody has stored yet."""
    return JobRecord(
        job=job,
        worker_count=rules.worker_count,
        server_count=rules.server_count,
        run=RunId(1),
        state=JobState.FORMING,
        generation=Generation(0),
        scheduler_incarnation=Incarnation(1),
    )


def next_life(job: JobRecord) -> JobRecord:
    """The stored job's row with the scheduler's next incarnation."""
    return msgspec.structs.replace(job, scheduler_incarnation=Incarnation(job.scheduler_incarnation + 1))
