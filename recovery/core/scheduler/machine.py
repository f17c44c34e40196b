"""The scheduler's machine: `handle(stimulus, now_ms) -> effects`, no I/O. One place decides, everything else carries out.

Here stands only which module handles what; what follows from it all, and in which order, stands in settle.py. A process registers:
registration.py. Which nodes are here: liveness.py. What ranks report: checkpoints/reports.py, training_messages.py.
"""

from __future__ import annotations

from typing import Union

from typing_extensions import assert_never

from recovery.core import messages as m
from recovery.core import principals
from recovery.core.barrier_messages import BarrierFromNode, Depart, Position, StopJob, StopTraining
from recovery.core.copy_messages import CopyFailed, CopyReport, UploadReport
from recovery.core.copy_records import CopyRecord
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, RequestId
from recovery.core.records import (
    CheckpointRecord,
    GenerationRecord,
    JobRecord,
    LiveSourceRecord,
    NodeRecord,
    ProcessRecord,
    SlotRecord,
    TrainingEndRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler import barrier_ends, invariants, job_end, leave_requests, restore, training_end
from recovery.core.scheduler.checkpoints import reports, uploading
from recovery.core.scheduler.effects import (
    BarrierTimer,
    CloseConnection,
    GraceTimer,
    LeaseTimer,
    OfferTimer,
    PauseTimer,
    RebuildTimer,
    SchedulerEffect,
    SchedulerTimer,
    ShutdownTimer,
    TopologyTimer,
    WaitingTimer,
    WindowsTimer,
)
from recovery.core.scheduler.generations import hung_ranks, slow_ranks, training_messages
from recovery.core.scheduler.membership import (
    liveness,
    lost_scheduler_store,
    quorum,
    ready_reports,
    registration,
    takeover,
)
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.settle import settle
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import (
    ConnectionLost,
    DrainAsked,
    MessageReceived,
    ProcessGone,
    SchedulerStimulus,
    StopAsked,
    TimerFired,
)

_FromSpeaker = Union[
    m.Ready,
    m.Heartbeat,
    m.CheckpointReport,
    m.CheckpointInvalid,
    m.NotSaved,
    m.RendezvousOpen,
    m.StateLoaded,
    m.FirstStep,
    m.CollectiveFailed,
    m.Failure,
    m.Done,
    m.Leave,
    BarrierFromNode,
    CopyReport,
    CopyFailed,
    UploadReport,
]
"""What only a registered node may send."""


STIMULI_PER_CHECK = 10
"""For each node: after so many stimuli the whole state is looked at. A look costs 4 us for each node and a heartbeat 11 to 17 us, so it takes 3 % of
the time that stimuli take (at half of it 6 %), and in a quiet job comes every ten heartbeats: 30 to 50 s, whatever its size."""


class SchedulerMachine:
    """The scheduler of one job."""

    def __init__(self, job: JobRecord, rules: Rules) -> None:
        """Start empty. The job's row has the scheduler incarnation of this process."""
        self.state = SchedulerState(job, rules)
        self._unchecked = 0
        """Stimuli since the state was looked at."""

    def restore(  # noqa: PLR0913 - one for each table
        self,
        nodes: tuple[NodeRecord, ...],
        generations: tuple[GenerationRecord, ...],
        checkpoints: tuple[CheckpointRecord, ...],
        slots: tuple[SlotRecord, ...] = (),
        processes: tuple[ProcessRecord, ...] = (),
        copies: tuple[CopyRecord, ...] = (),
        *,
        live_sources: tuple[LiveSourceRecord, ...] = (),
        training_ends: tuple[TrainingEndRecord, ...] = (),
    ) -> None:
        """Take over what an earlier process of the scheduler stored. Called before `start`."""
        restore.restore(
            self.state,
            nodes,
            generations,
            checkpoints,
            slots,
            processes=processes,
            copies=copies,
            live_sources=live_sources,
            training_ends=training_ends,
        )

    def start(self, now_ms: int) -> list[SchedulerEffect]:
        """Begin to serve."""
        return [*restore.start(self.state, now_ms), *settle(self.state, now_ms)]

    def check(self) -> None:
        """Raise AssertionError when something that is always true of the state is not. Tests ask after every stimulus.

        Nothing is, once this scheduler ends in the middle of what follows from a stimulus.
        """
        self._unchecked = 0
        if not self.state.store_rebuild.ends_scheduler:
            invariants.check(self.state)

    def handle(self, stimulus: SchedulerStimulus, now_ms: int) -> list[SchedulerEffect]:
        """Take one stimulus and give what is to be done, in order.

        Raises:
            AssertionError: something is not as it must be (`check`, now and then and at each generation). Nothing of it may be carried out.
        """
        if self.state.store_rebuild.ends_scheduler:
            return []
        state, generation = self.state, self.state.job.generation
        effects = [*self._take(stimulus, now_ms), *settle(state, now_ms)]
        while not state.store_rebuild.ends_scheduler and (waiting := state.waiting.take()):
            for entry in waiting:
                effects += registration.on_register(state, entry.received, entry.register, now_ms)
            effects += settle(state, now_ms)
        self._unchecked += 1
        is_due = self._unchecked >= STIMULI_PER_CHECK * len(state.nodes)
        if is_due or state.job.generation != generation:
            self.check()
        return effects

    def _take(self, stimulus: SchedulerStimulus, now_ms: int) -> list[SchedulerEffect]:
        match stimulus:
            case MessageReceived():
                return self._on_message(stimulus, now_ms)
            case ConnectionLost():
                return liveness.on_connection_lost(self.state, stimulus, now_ms)
            case DrainAsked():
                return leave_requests.on_drain_asked(self.state, stimulus, now_ms)
            case TimerFired():
                return self._on_timer(stimulus.timer, now_ms)
            case ProcessGone():
                return liveness.on_process_gone(self.state, stimulus, now_ms)
            case StopAsked():
                return job_end.on_stop_asked(self.state, stimulus.signal)
            case _:
                assert_never(stimulus)

    def _on_timer(  # noqa: PLR0911, PLR0912, C901 - one case per timer
        self, timer: SchedulerTimer, now_ms: int
    ) -> list[SchedulerEffect]:
        """A timer is due. The state says whether it still means anything."""
        state = self.state
        if isinstance(timer, ShutdownTimer):
            return job_end.on_shutdown_due(state, now_ms)
        if state.job_ended:
            return []
        match timer:
            case WindowsTimer():
                return liveness.on_windows_due(state, now_ms)
            case TopologyTimer():
                return quorum.on_deadline(state, now_ms)
            case BarrierTimer():
                return barrier_ends.on_due(state, now_ms)
            case GraceTimer():
                return liveness.on_grace_over(state, state.nodes[timer.node_id], now_ms)
            case WaitingTimer():
                return registration.look_again(state, now_ms)
            case RebuildTimer():
                return lost_scheduler_store.on_asked(state, now_ms)
            case PauseTimer():
                # What follows is drawn behind every timer.
                return []
            case OfferTimer():
                return takeover.on_offer_due(state, timer.slot, now_ms)
            case LeaseTimer():
                return liveness.on_lease_due(state, state.nodes[timer.node_id], now_ms)
            case _:
                assert_never(timer)

    def _on_message(self, received: MessageReceived, now_ms: int) -> list[SchedulerEffect]:
        """Nothing is heard of whom the table of principals does not let say it."""
        state, connection, message = self.state, received.connection, received.message
        node = state.speaker(connection)
        fault = _violation(received, node)
        if fault:
            return [CloseConnection(connection, fault, is_fault=True)]
        if isinstance(message, m.Register):
            earlier = state.waiting.forget_process(connection, message)
            closing = [] if earlier is None else [CloseConnection(earlier, "replaced by a newer connection")]
            return [*closing, *registration.on_register(state, received, message, now_ms)]
        if isinstance(message, m.Exited):
            return liveness.on_exited(state, received, message, now_ms)
        if isinstance(message, StopJob):
            asked = leave_requests.on_host_leaves if message.nodes else barrier_ends.on_stop_job
            return asked(state, connection, message, received.peer, now_ms)
        assert node is not None, "the table lets only members say the rest"
        return self._from_speaker(node, connection, message, now_ms)

    def _from_speaker(
        self, node: Node, connection: ConnectionId, message: _FromSpeaker, now_ms: int
    ) -> list[SchedulerEffect]:
        """A node speaks: it is heard, a repeat gets the answer that it had, and one that has left says nothing more."""
        state = self.state
        node.heard_ms, node.proven_dead = now_ms, False
        request: RequestId | None = getattr(message, "request_id", None)
        answer = node.answers.get(request) if request is not None else None
        if answer is not None:
            # Behind the write that the first answer waited for.
            return [Persist((), (Answer(connection, answer),))]
        if job_end.has_left(node):
            if isinstance(message, m.Heartbeat) and state.barrier is not None:
                # It has not heard yet that it has left, and waits at a step no longer.
                state.barrier.note_stop(message.generation, message.step)
            return []
        # A checkpoint that is there, or is not, counts whenever it is reported.
        if state.job_ended and not isinstance(message, (m.Heartbeat, m.CheckpointReport, m.NotSaved)):
            ended = (Answer(connection, job_end.job_ended(state)),)
            if isinstance(message, m.Failure):
                return [Persist((training_messages.failed_event(state, node, message),), ended)]
            return [Persist((), ended)]
        return self._dispatch(node, message, now_ms)

    def _dispatch(  # noqa: C901, PLR0911, PLR0912 - one case per message
        self, node: Node, message: _FromSpeaker, now_ms: int
    ) -> list[SchedulerEffect]:
        state = self.state
        match message:
            case m.Heartbeat():
                answer = liveness.on_heartbeat(state, node, message)
                hung = hung_ranks.note_heartbeat(state, node, message, now_ms)
                return [*answer, *hung, *slow_ranks.note_heartbeat(state, node, message, now_ms)]
            case m.Ready():
                ready_reports.on_ready(state, node, message)
                return []
            case m.CheckpointReport():
                return reports.on_checkpoint_report(state, node, message, now_ms)
            case m.CheckpointInvalid():
                return training_messages.on_checkpoint_invalid(state, node, message)
            case m.NotSaved():
                return reports.on_not_saved(state, node, message)
            case m.RendezvousOpen():
                return training_messages.on_rendezvous_open(state, node, message)
            case m.StateLoaded():
                return training_messages.on_loaded(state, node, message)
            case m.FirstStep():
                return training_messages.on_first_step(state, node, message)
            case m.CollectiveFailed():
                return training_messages.on_collective_failed(state, node, message, now_ms)
            case m.Failure():
                return training_messages.on_failure(state, node, message)
            case m.Done():
                return training_messages.on_done(state, node, message)
            case m.Leave():
                return liveness.on_leave(state, node, message)
            case Depart():
                return leave_requests.on_depart(state, node, message, now_ms)
            case StopTraining():
                return training_end.on_stop_training(state, node, message, now_ms)
            case Position():
                return barrier_ends.on_position(state, node, message)
            case CopyReport():
                return reports.on_copy_report(state, node, message)
            case CopyFailed():
                return reports.on_copy_failed(state, node, message)
            case UploadReport():
                return uploading.on_upload_report(state, node, message)
            case _:
                assert_never(message)


def _violation(received: MessageReceived, node: Node | None) -> str:
    """Why the sender may not say this; empty: it may."""
    member = node.record.node_id if node is not None else None
    rank = node.record.rank if node is not None else None
    who = received.principal or principals.claimed(received.message, peer=received.peer, member=member)
    return principals.violation(who, received.message, member=member, rank=rank)
