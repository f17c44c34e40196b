"""How generations end and begin, and how the job ends. Functions over the table; the one place that moves `job.state`.

FORMING -> RUNNING(g) -> INTERRUPTED(g) -> [full house] -> plan -> RUNNING(g+1) ... -> FINISHED | FAILED
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from recovery.core import messages as m
from recovery.core.checkpoints import CheckpointCoordinator, to_record
from recovery.core.effects import Answer, Exit, Persist, SetTimer
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.policy import given_up, ranks, rollback
from recovery.core.policy.rebuild import Unclear
from recovery.core.records import (
    CheckpointState,
    EventKind,
    GenerationRecord,
    JobState,
    NodeState,
    Record,
    RunRecord,
)
from recovery.core.scheduler import lost_store
from recovery.core.scheduler.effects import CloseConnection, SchedulerEffect, Send
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import FAREWELL_MS, RUN_FINISHED, WINDOW_NOTE_MS, SchedulerState

_WAITING = (JobState.FORMING, JobState.INTERRUPTED)


def lose(table: SchedulerState, node: Node, reason: str, now_ms: int) -> list[SchedulerEffect]:
    """A node is lost: its generation is over and its id is refused until the window ends, counted from when it was last heard."""
    node.window_ends_ms = node.heard_ms + table.rules.rejoin_window_ms
    record = node.move(NodeState.LOST, reason=reason, rejoin_left_ms=max(0, node.window_ends_ms - now_ms))
    node.ready, node.done = None, False
    effects: list[SchedulerEffect] = []
    if node.connection is not None:
        effects.append(CloseConnection(node.connection, f"lost: {reason}"))
        table.speakers.pop(node.connection, None)
        node.connection = None
    event = table.node_event(EventKind.NODE_LOST, node, step=record.step, reason=reason)
    effects += [
        Persist((record, table.life_of(node, ended=reason), event)),
        SetTimer("windows", now_ms + WINDOW_NOTE_MS),
    ]
    ends_generation = (
        record.role is m.Role.WORKER or not table.rules.recovery_enabled
    )  # off: any loss ends all
    if ends_generation:
        effects += interrupt(table, f"{record.node_id} lost: {reason}", now_ms)
    return effects


def interrupt(table: SchedulerState, reason: str, now_ms: int) -> list[SchedulerEffect]:
    """End the generation. Survivors are told at once, before anything is written: it promises them nothing.

    They are told again behind the write: the first word may have overtaken the plan of this very generation.
    """
    if table.job.state is JobState.INTERRUPTED:
        return _another_failure(table, reason, now_ms)
    if table.job.state is not JobState.RUNNING:
        return []
    if not table.rules.recovery_enabled:
        return end(table, m.JobOutcome.JOB_FAILED, reason, now_ms)
    told: list[Answer] = []
    interrupted = m.Interrupt(generation=table.job.generation, reason=reason[:1024])
    for node in table.workers:
        node.ready, node.done = None, False
        if node.connection is not None:
            told.append(Answer(node.connection, interrupted))
    effects: list[SchedulerEffect] = [Send(answer.connection, interrupted) for answer in told]
    table.because_is_guess, table.rendezvous = False, None
    ended = msgspec.structs.replace(
        table.generations[-1], ended=reason, ended_step=max(node.record.step for node in table.workers)
    )
    table.generations[-1] = ended
    event = table.event(
        EventKind.GENERATION_INTERRUPTED,
        generation=table.job.generation,
        step=ended.ended_step,
        reason=reason,
    )
    job = table.change_job(JobState.INTERRUPTED, reason=reason)
    effects.append(Persist((job, ended, event), tuple(told)))
    return effects + wait_for_full_house(table, now_ms)


def _another_failure(table: SchedulerState, reason: str, now_ms: int) -> list[SchedulerEffect]:
    """One more failure of an interrupted generation: the wait begins anew, the first failure stays the reason."""
    effects = wait_for_full_house(table, now_ms)
    if table.because_is_guess:
        table.because_is_guess = False
        effects.append(Persist((table.change_job(JobState.INTERRUPTED, reason=reason),)))
    return effects


def wait_for_full_house(table: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Start the deadline within which every rank must be here (MS_TOPO_TIMEOUT)."""
    if table.rules.topology_timeout_ms is None:
        return []
    table.deadline_ms = now_ms + table.rules.topology_timeout_ms
    return [SetTimer("topology", table.deadline_ms)]


def full_house_missed(table: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """The deadline has passed: the job fails, and says who was missing."""
    if table.deadline_ms is None or now_ms < table.deadline_ms or table.job.state not in _WAITING:
        return []
    assert table.rules.topology_timeout_ms is not None, "there was a deadline"
    roles = [_attendance(table, m.Role.WORKER, table.rules.world_size)]
    if table.job.state is JobState.FORMING and table.rules.server_count:  # later nobody waits for servers
        roles.append(_attendance(table, m.Role.SERVER, table.rules.server_count))
    unready = [
        node.record.node_id
        for node in table.workers
        if node.record.state is NodeState.LIVE and node.ready is None
    ]
    reason = (
        f"{' and '.join(role.counted for role in roles)} are here after "
        f"{table.rules.topology_timeout_ms / 1000:g} s (MS_TOPO_TIMEOUT); "
        f"missing: {', '.join(name for role in roles for name in role.missing) or 'none'}; "
    )
    if unready:
        names = ", ".join(sorted(unready, key=ranks.natural_key))
        reason += f"here and not ready, still looking at its checkpoints: {names}; "
    reason += f"here: {', '.join(name for role in roles for name in role.here) or 'none'}"
    if table.job.reason:
        reason += f"; first failure: {table.job.reason}"
    return end(table, m.JobOutcome.WAIT_TIMEOUT, reason, now_ms)


class _Attendance(NamedTuple):
    """Who of a role is here and who is not, as people read it."""

    counted: str
    missing: list[str]
    here: list[str]


def _attendance(table: SchedulerState, role: m.Role, wanted: int) -> _Attendance:
    word = "worker" if role is m.Role.WORKER else "server"
    here: list[str] = []
    missing: list[str] = []
    for node in sorted(table.seated(role), key=lambda one: ranks.natural_key(one.record.node_id)):
        (here if node.record.state is NodeState.LIVE else missing).append(node.record.node_id)
    unknown = wanted - len(here) - len(missing)
    if unknown:
        which = "" if role is m.Role.WORKER else f" {word}{'s' if unknown > 1 else ''}"
        missing.append(f"{unknown}{which} that never registered")
    return _Attendance(f"{len(here)} of {wanted} {word}s", missing, here)


def try_open(table: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Start the next generation if the house is full: every rank live and ready."""
    if table.job.state not in _WAITING or not _full_house(table):
        return []
    records: list[Record] = []
    if table.job.state is JobState.FORMING:
        taken_up = lost_store.take_up(table)
        if isinstance(taken_up, Unclear):
            return [lost_store.lost(table, taken_up.reason)]
        records = [*taken_up, *_assign_ranks(table)]
    target = table.coordinator.target(allow_restart_from_zero=table.rules.allow_restart_from_zero)
    if isinstance(target, rollback.NoCommonStep):
        why = given_up.sentence(table.coordinator.given_up(0))
        reason = (
            f"no step is held by all {table.rules.world_size} ranks ({target.table}). Nothing was "
            "deleted. Bring the missing files back, or set MS_ALLOW_RESTART_FROM_ZERO=1 to start again at step 0."
            f"{f' Why: {why}.' if why else ''}"
        )
        told = Persist((*records, *_missing_files(table, 0)))
        return [told, *end(table, m.JobOutcome.NO_COMMON_CHECKPOINT, reason, now_ms)]
    return [_open(table, target, records)]


def _missing_files(table: SchedulerState, target: int) -> list[Record]:
    """A line of the story for every file of a newer committed step that nobody found; what was found and is bad was told before."""
    nodes = {node.record.rank: node for node in table.workers}
    missing = [
        (step, rank, one.path)
        for step, unusable in table.coordinator.given_up(target).items()
        for rank, one in unusable.items()
        if one.reason == given_up.MISSING
    ]
    return [
        table.node_event(
            EventKind.CHECKPOINT_PASSED_OVER,
            nodes[rank],
            step=step,
            reason="it was committed and is missing",
            details=path,
        )
        for step, rank, path in missing[: m.PASSED_OVER_MAX]
    ]


def _full_house(table: SchedulerState) -> bool:
    workers, servers = table.seats[m.Role.WORKER], table.seats[m.Role.SERVER]
    if workers.taken < table.rules.world_size:
        return False
    if table.job.state is JobState.FORMING and servers.taken < table.rules.server_count:
        return False
    return workers.all_ready


def _assign_ranks(table: SchedulerState) -> list[Record]:
    records: list[Record] = []
    told: list[str] = []
    for role in (m.Role.WORKER, m.Role.SERVER):
        seated = table.seated(role)
        hosts = {node.record.node_id: node.record.host for node in seated}
        kept = {node.record.node_id: node.record.rank for node in seated if node.record.rank is not None}
        assigned = ranks.keep(ranks.assign(hosts), kept)
        for node in seated:
            rank = assigned[node.record.node_id]
            node.record = msgspec.structs.replace(node.record, rank=rank)
            records += [node.record, table.life_of(node)]
            told.append(f"{node.record.node_id}={rank}")
            if role is m.Role.WORKER and node.ready is not None:
                table.coordinator.replace(rank, table.held_by(node.ready), node.ready.passed_over)
    details = " ".join(sorted(told, key=ranks.natural_key))
    return [*records, table.event(EventKind.RANKS_ASSIGNED, details=details)]


def _open(
    table: SchedulerState, target: rollback.ToCheckpoint | rollback.ToStart, records: list[Record]
) -> SchedulerEffect:
    files = target.files if isinstance(target, rollback.ToCheckpoint) else ()
    step = target.step if isinstance(target, rollback.ToCheckpoint) else 0
    records += _missing_files(table, step)
    reason = _why_there(table, target, step)
    newest = max(node.ready.generation for node in table.workers if node.ready is not None)
    generation = GenerationRecord(
        run=table.job.run,
        generation=Generation(
            max(table.job.generation, newest) + 1
        ),  # workers may know more than a store that was lost
        step=step,
        epoch=files[0].epoch if files else 0,
        step_in_epoch=files[0].step_in_epoch if files else 0,
        because=table.job.reason,
    )
    event = table.event(
        EventKind.PLAN_MADE, generation=generation.generation, step=generation.step, reason=reason
    )
    table.generations.append(generation)
    table.coordinator.rolled_back(generation.step)
    table.rendezvous, table.deadline_ms = None, None
    job = table.change_job(JobState.RUNNING, generation=generation.generation)
    answers: list[Answer] = []
    places = local_places(table)
    for node in table.workers:
        node.ready, node.done = None, False
        node.record = msgspec.structs.replace(
            node.record, generation=generation.generation, step=generation.step
        )
        records.append(node.record)
        node.told_generation = generation.generation
        assert node.connection is not None, "a full house is connected"
        answers.append(Answer(node.connection, rollback_for(table, node, places)))
    records += [to_record(Rank(rank), held, CheckpointState.COMMITTED) for rank, held in enumerate(files)]
    return Persist((*records, job, generation, event), tuple(answers))


def _why_there(table: SchedulerState, target: rollback.ToCheckpoint | rollback.ToStart, step: int) -> str:
    """Why the plan is where it is: also which newer committed steps it gives up, and whose files are the reason."""
    reasons = [target.reason if isinstance(target, rollback.ToStart) else f"every rank holds step {step}"]
    why = given_up.sentence(table.coordinator.given_up(step))
    if why:
        reasons.append(why)
    count = sum(
        len(node.ready.passed_over) + node.ready.passed_over_more
        for node in table.workers
        if node.ready is not None
    )
    if count and not why:
        reasons.append(f"files that were passed over: {count}")
    return "; ".join(reasons)


def local_places(table: SchedulerState) -> dict[Rank, tuple[int, int]]:
    """Each rank's (local rank, local world size), found once for each generation."""
    generation = (table.job.run, table.job.generation)
    if table.places is None or table.places[0] != generation:
        hosts = {
            worker.record.rank: worker.record.host
            for worker in table.workers
            if worker.record.rank is not None
        }
        table.places = (generation, ranks.local_places(hosts))
    return table.places[1]


def rollback_for(table: SchedulerState, node: Node, places: Mapping[Rank, tuple[int, int]]) -> m.Rollback:
    """The current generation's plan, as this node is told it."""
    generation = table.generations[-1]
    rank = node.record.rank
    assert rank is not None, "a plan is for ranks"
    local_rank, local_world_size = places[rank]
    file = table.coordinator.file_of(rank, generation.step)
    return m.Rollback(
        generation=generation.generation,
        run=generation.run,
        step=generation.step,
        epoch=generation.epoch,
        step_in_epoch=generation.step_in_epoch,
        rank=rank,
        world_size=table.rules.world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        path=file.path if file else "",
        digest=file.digest if file else "",
        committed_step=table.coordinator.committed_step,
        because=generation.because[:1024],
        job=table.job.job,
        incarnation=node.record.incarnation,
    )


def end(table: SchedulerState, outcome: m.JobOutcome, reason: str, now_ms: int) -> list[SchedulerEffect]:
    """The job is over: written first, then told to everyone connected. A node has left when it hangs up after that."""
    table.outcome = outcome
    finished = outcome is m.JobOutcome.FINISHED
    event = table.event(EventKind.JOB_FINISHED if finished else EventKind.JOB_FAILED, reason=reason)
    job = table.change_job(JobState.FINISHED if finished else JobState.FAILED, reason=reason)
    run = RunRecord(run=job.run, outcome=outcome.value, reason=reason)
    answers = table.to_all(m.JobEnded(outcome=outcome, reason=reason[:1024]))
    return [Persist((job, run, event), answers), SetTimer("farewell", now_ms + FAREWELL_MS)]


def farewell(table: SchedulerState) -> Exit:
    """The scheduler's own end, after the job's."""
    return Exit(table.outcome.code, table.job.reason)


def part(table: SchedulerState, nodes: list[Node]) -> list[Record]:
    """These have nothing more to do in a finished run: their ids are free. A failed one keeps them for its next try."""
    if table.job.state is not JobState.FINISHED:
        return []
    return [
        node.move(NodeState.LEFT, reason=RUN_FINISHED)
        for node in nodes
        if node.record.state is not NodeState.LEFT
    ]


def begin_run(table: SchedulerState) -> list[Record]:
    """A finished job's path starts its next run: same node ids, no ranks, no checkpoints, new generations.

    Called when a scheduler starts and every node of the run before has left.
    """
    job = table.change_job(JobState.FORMING, generation=Generation(0), run=RunId(table.job.run + 1))
    table.coordinator = CheckpointCoordinator(table.rules.world_size)
    table.generations = []
    records: list[Record] = [job, RunRecord(run=job.run)]
    for node in table.nodes.values():
        node.record = msgspec.structs.replace(node.record, rank=None, step=0, generation=Generation(0))
        records.append(node.record)
    return records
