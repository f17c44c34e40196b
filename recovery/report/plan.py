"""What a restart now would do: the same rules as the scheduler's, on what the files and the directories hold now.

Each rank's directories are looked into as its next incarnation would, and each file of the target is read whole. A rank whose
directories are on another host is taken by the scheduler's checkpoint index, and said to be unverified. A directory of this host that
is gone holds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from recovery.checkpoint import catalogue, verify
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.ids import NodeId, Rank
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy import copies, rebuild, rollback, takeover
from recovery.core.policy.live import LIVE_MODE, NOT_LIVE
from recovery.core.policy.next_plan import End, next_plan
from recovery.core.policy.ranks import first_id
from recovery.core.records import CheckpointState, EventKind, JobState, NodeRecord, NodeState, to_held
from recovery.core.tiers import tier_of
from recovery.errors import CheckpointError, RecoveryError, RecoveryPathError
from recovery.report.rank_progress import stored_newest_step
from recovery.report.stored import SlotState, Stored
from recovery.store.reader import read_newest_events, read_worker
from recovery.transport.local_address import is_local
from recovery.worker.checkpoint_search import prefix_of

_SCHEDULER_STARTS = (EventKind.SCHEDULER_STARTED, EventKind.SCHEDULER_RESTARTED)


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank would load."""

    rank: int
    node_id: str
    path: str
    verified: bool
    why_not: str
    """Empty when verified."""
    tier: str
    """`disk`, or `memory`: gone when its host restarts."""
    copy_of: tuple[str, ...] = ()
    """The nodes that hold a copy, where the rank's own node has lost its file; empty: it loads its own."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen."""

    action: str
    """`resume` at a checkpoint, `start` at step 0, `new_run` (the job is finished) or `fail`."""
    reason: str
    step: int
    epoch: int
    step_in_epoch: int
    steps_lost: int
    """Steps that ranks have applied and would do again."""
    files: tuple[RankFile, ...]
    """By rank; empty without a checkpoint."""
    stepped_back: tuple[RankFile, ...]
    """Files of newer common steps that do not verify, because of which the plan is older."""
    refused: tuple[dict[str, Any], ...]
    """Node ids that are still refused, with seconds left, as of the last write, and the node that has taken their rank since; null: none."""
    standbys: tuple[dict[str, Any], ...]
    """Node ids that hold no rank, each with the lost rank that it would be asked first to take; null: none."""
    guesses: tuple[str, ...] = ()
    """What nobody knows and is taken for so, as sentences: the scheduler's store was lost and made again."""
    live: str = ""
    """What live rollback does about a death while others survive; empty: it is not asked for, or nobody trains."""


def plan(stored: Stored, *, allow_restart_from_zero: bool = False) -> Plan:
    """Work it out.

    Args:
        stored: the job.
        allow_restart_from_zero: as MS_ALLOW_RESTART_FROM_ZERO would be set.
    """
    if stored.job.state is JobState.FINISHED:
        return _plan(stored, "new_run", "the job is finished: the same path starts its next run, at step 0")
    coordinator, unseen = _index(stored)
    names = {node.rank: str(node.node_id) for node in stored.workers if node.rank is not None}
    copied = coordinator.copies.one_of_each()
    stepped_back: list[RankFile] = []
    gives_to_all = _is_live_asked_for(stored)
    while True:
        of_index = coordinator.facts(allow_restart_from_zero=allow_restart_from_zero, copied=copied)
        decided = next_plan(msgspec.structs.replace(of_index, live_rollback=gives_to_all))
        if isinstance(decided, End) or decided.at is None:
            action = "fail" if isinstance(decided, End) else "start"
            reason = _with_given_up(coordinator, decided.reason, 0)
            return _plan(stored, action, reason, stepped_back=stepped_back)
        at = decided.at
        assert isinstance(at, HeldCheckpoint), "nobody has said what is in its memory"
        given = [(source.rank, at) for source in decided.sources]
        files = [
            _checked(stored, rank, names.get(rank, ""), held, unseen=rank in unseen)
            if coordinator.file_of(rank, at.step) is not None
            else _copy(rank, names.get(rank, ""), held, coordinator.copies.holders(rank, at.step))
            for rank, held in given or [(Rank(rank), held) for rank, held in enumerate(decided.files)]
        ]
        bad = [
            file for file in files if not file.verified and not file.copy_of and Rank(file.rank) not in unseen
        ]
        for file in bad:
            coordinator.reject(Rank(file.rank), at.step, file.why_not)
        stepped_back += bad
        if bad:
            continue
        if decided.sources:
            return _plan(stored, "resume", decided.reason, at, _taken_from(files[0], names), stepped_back)
        fetched = [(Rank(file.rank), ", ".join(file.copy_of)) for file in files if file.copy_of]
        reason = "; ".join([decided.reason, *copies.who_fetches(fetched)])
        reason = _with_given_up(coordinator, reason, at.step)
        return _plan(stored, "resume", reason, at, files, stepped_back)


def _with_given_up(coordinator: CheckpointIndex, reason: str, step: int) -> str:
    why = rollback.why_given_up(coordinator.given_up(step))
    return f"{reason}; {why}" if why else reason


def _index(stored: Stored) -> tuple[CheckpointIndex, set[Rank]]:
    """The scheduler's checkpoint index as it would be once every rank has looked; and whose directories cannot be seen from here."""
    coordinator = CheckpointIndex(stored.job.worker_count)
    generations = [record for record in stored.generations if record.run == stored.job.run]
    coordinator.load(
        (record for record in stored.checkpoints if record.run == stored.job.run),
        generations,
        stored.live_generations,
    )
    # Those that nodes hold which are not lost.
    here = {node.node_id for node in stored.nodes if node.state.is_here}
    coordinator.copies.load(
        (copy for copy in stored.copies if copy.run == stored.job.run and copy.node_id in here), generations
    )
    unseen: set[Rank] = set()
    have_saved = {
        record.rank
        for record in stored.checkpoints
        if record.run == stored.job.run and record.state is not CheckpointState.INVALID
    }
    for node in stored.workers:
        if node.rank is None:
            continue
        found = _found_by(stored, node, has_saved=node.rank in have_saved)
        if found is None:
            unseen.add(node.rank)
        else:
            held = rollback.in_lineage(found.held, generations)
            coordinator.replace(node.rank, held, found.passed_over)
    return coordinator, unseen


def _copy(rank: Rank, node_id: str, held: HeldCheckpoint, holders: Iterable[str]) -> RankFile:
    holding = tuple(holders)
    why_not = f"its own node does not have it; {', '.join(holding)} verified a copy when it was made"
    return _file(rank, node_id, held, why_not, copy_of=holding)


def _file(
    rank: Rank, node_id: str, held: HeldCheckpoint, why_not: str, copy_of: tuple[str, ...] = ()
) -> RankFile:
    return RankFile(
        rank=int(rank),
        node_id=node_id,
        path=held.path,
        verified=not why_not,
        why_not=why_not,
        tier=tier_of(held.path).value,
        copy_of=copy_of,
    )


def _taken_from(file: RankFile, names: Mapping[Rank, str]) -> list[RankFile]:
    """What all ranks load where one gives them its checkpoint."""
    why_not = f"rank {file.rank} gives it to all (MS_ROLLBACK=live)"
    return [
        file
        if rank == file.rank
        else msgspec.structs.replace(
            file, rank=int(rank), node_id=name, verified=False, why_not=why_not, copy_of=(file.node_id,)
        )
        for rank, name in sorted(names.items())
    ]


def _found_by(stored: Stored, node: NodeRecord, *, has_saved: bool) -> catalogue.Listing | None:
    """What the node's next incarnation would find in its directories; None: they are not on this host.

    Args:
        stored: the job.
        node: whose.
        has_saved: the index names a file of this rank that could be used.
    """
    try:
        records = read_worker(stored.path, node.node_id, accept_without_wal=True).directories
    except RecoveryPathError:
        records = ()
    except RecoveryError:
        return None
    places = [(record.path, record.prefix) for record in records if record.run == stored.job.run]
    if not places and has_saved:
        # Its process is new in this slot: it looks where the rank has saved before, as `LocalStore.find_offered`.
        places = _saved_to(stored, node)
    if not places and has_saved:
        return None
    if not is_local(node.host) and not all(Path(path).is_dir() for path, _ in places):
        return None
    return catalogue.list_all(places, job=stored.job.job, run=stored.job.run, rank=node.rank)


def _saved_to(stored: Stored, node: NodeRecord) -> list[tuple[str, str]]:
    """Where a rank has saved, and under which prefixes, by the scheduler's checkpoint index."""
    found = {
        (str(Path(record.path).parent), prefix_of(to_held(record)))
        for record in stored.checkpoints
        if (record.run, record.rank) == (stored.job.run, node.rank)
    }
    return [(path, prefix) for path, prefix in found if prefix is not None]


def _checked(stored: Stored, rank: Rank, node_id: str, held: HeldCheckpoint, *, unseen: bool) -> RankFile:
    why_not = ""
    if unseen:
        why_not = "its directories are not on this host: taken by the scheduler's checkpoint index"
    else:
        try:
            verify.check_wanted(
                Path(held.path),
                verify.Wanted(
                    job=stored.job.job,
                    run=stored.job.run,
                    rank=int(rank),
                    world_size=stored.job.worker_count,
                    step=held.step,
                    digest=held.digest,
                ),
            )
        except CheckpointError as error:
            why_not = str(error)
    return _file(rank, node_id, held, why_not)


def _plan(
    stored: Stored,
    action: str,
    reason: str,
    at: HeldCheckpoint | None = None,
    files: list[RankFile] | None = None,
    stepped_back: list[RankFile] | None = None,
) -> Plan:
    step = at.step if at is not None else 0
    end = stored.training_end
    if end is not None and action in ("resume", "start"):
        # As the scheduler's own plan says it.
        reason = f"{reason}; training ends at step {max(end.step, step)} ({end.reason})"
    refused = tuple(
        {
            "node_id": str(node.node_id),
            "rejoin_left_s": node.rejoin_left_ms / 1000,
            "rank_taken_by": _taken_by(stored, node),
        }
        for node in stored.lost
        if node.rejoin_left_ms
    )
    asked = _asked_first(stored) if action in ("resume", "start") else {}
    return Plan(
        action=action,
        reason=reason,
        step=step,
        epoch=at.epoch if at is not None else 0,
        step_in_epoch=at.step_in_epoch if at is not None else 0,
        steps_lost=0 if action in ("new_run", "fail") else max(0, stored_newest_step(stored) - step),
        files=tuple(files or ()),
        stepped_back=tuple(stepped_back or ()),
        refused=refused,
        standbys=tuple(
            {"node_id": str(node.node_id), "takes_rank": asked.get(node.node_id)}
            for node in stored.standbys
            if node.state.is_here
        ),
        live=_live_sentence(stored),
        guesses=_guesses(stored),
    )


def _guesses(stored: Stored) -> tuple[str, ...]:
    """What a rebuilt store rests on, as its event says, until the next plan is made."""
    newest = read_newest_events(stored.path, (EventKind.STORE_REBUILT, EventKind.PLAN_MADE), 1)
    unsure = newest[0].event.details.partition(rebuild.UNSURE)[2] if newest else ""
    return tuple(unsure.split("; ")) if unsure else ()


def _taken_by(stored: Stored, lost: NodeRecord) -> str | None:
    """The node that holds the slot of one that holds none any more; None: none is known to."""
    if stored.slot_state(lost) is not SlotState.REPLACED:
        return None
    of_its_name = (
        node
        for node in stored.workers
        if node.rank is not None and stored.slot_of(node) == first_id(lost.node_id)
    )
    return next((str(node.node_id) for node in of_its_name), None)


def _asked_first(stored: Stored) -> dict[NodeId, int]:
    """Which standby the scheduler would ask for which lost rank. Whether it can read the rank's files it says itself."""
    asked: dict[NodeId, int] = {}
    gone = (NodeState.LOST, NodeState.LEFT)
    vacant = {
        stored.slot_of(node): node for node in stored.workers if node.rank is not None and node.state in gone
    }
    for slot, node in vacant.items():
        free = [
            takeover.Candidate(
                standby.node_id,
                standby.host,
                is_warm=standby.node_id not in stored.warming_up,
                comes_for=_comes_for(standby.node_id, vacant),
            )
            for standby in stored.standbys
            if standby.state is NodeState.LIVE and standby.node_id not in asked
        ]
        chosen = takeover.next_candidate(takeover.Wanted(slot, node.host), free, ())
        if chosen is not None and node.rank is not None:
            asked[chosen.node_id] = node.rank
    return asked


def _comes_for(standby: NodeId, vacant: Collection[str]) -> str:
    """The vacant slot that its id says it was started for: worker_0.2 for worker_0. Empty: any."""
    return next((slot for slot in (standby, first_id(standby)) if slot in vacant), "")


def _is_live_asked_for(stored: Stored) -> bool:
    """Was the job's newest scheduler started with live rollback?"""
    started = read_newest_events(stored.path, _SCHEDULER_STARTS, 1)
    return bool(started) and started[0].event.details == LIVE_MODE


def _live_sentence(stored: Stored) -> str:
    """Say whether a death now would cost steps; empty: the job does not ask for live rollback, or nobody trains."""
    if not _is_live_asked_for(stored) or stored.job.state is not JobState.RUNNING:
        return ""
    loaded = read_newest_events(stored.path, (EventKind.STATE_LOADED,), 2 * stored.job.worker_count)
    reasons = {
        f"rank {row.event.rank}: {row.event.details.removeprefix(NOT_LIVE)}"
        for row in loaded
        if row.event.generation == stored.job.generation and row.event.details.startswith(NOT_LIVE)
    }
    if reasons:
        return f"not possible, so a death costs the steps since the newest checkpoint: {'; '.join(sorted(reasons))}"
    return (
        "while a rank survives between two optimizer steps, a death costs no step: training goes on from that rank's memory; "
        "the checkpoint is for what no memory survives"
    )
