"""One screen: where the job stands, which nodes are missing and when they may return, what a rollback would go back to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from recovery import job_line
from recovery.core.failed_work import FailedWork
from recovery.core.messages import Role
from recovery.core.records import CheckpointState, EventKind
from recovery.core.scheduler.views import AWAY, STARTING_AGAIN
from recovery.report.rank_progress import (
    RunningProcesses,
    newest_step,
    notes_of_now,
    progress_of_ranks,
    starting_again,
)
from recovery.report.stored import SlotState, Stored, slot_state
from recovery.report.tables import EVENTS, NODES, RANKS, STEPS
from recovery.store.reader import StoredEvent, read_failed_work, read_newest_events, read_notices

LAST_EVENTS = 8
"""A screen holds them beside the rest."""

_NOT_TOLD: dict[str, Any] = {
    **dict.fromkeys(("epoch", "total_steps", "loss", "waits_s")),
    "waits_for": [],
    "hang": None,
    "stragglers": [],
    "leaving": None,
}
"""What only a running scheduler is told, as `_told` gives it."""


def status(stored: Stored) -> dict[str, Any]:
    """As plain values with stable keys."""
    job, generation = stored.job, stored.current
    committed, processes = committed_step(stored), RunningProcesses(stored)
    noted = notes_of_now(stored)
    ranks = progress_of_ranks(stored, processes, noted)
    newest, events = newest_step(stored, ranks), _newest_events(stored.path)
    return {
        "path": str(stored.path),
        "job": job.job,
        "run": job.run,
        "state": processes.job_state,
        "stored_state": job.state.value,
        "reason": job.reason,
        "scheduler": {
            "pid": stored.scheduler_pid,
            "alive": stored.scheduler_pid is not None,
            "incarnation": job.scheduler_incarnation,
        },
        "generation": job.generation,
        "generation_began_at_step": generation.step if generation is not None else None,
        "world_size": job.worker_count,
        "workers_by_state": dict(Counter(rank.state for rank in ranks)),
        "standbys": processes.rows(stored.standbys),
        "warming_up": [
            str(node.node_id) for node in (*stored.workers, *stored.standbys) if processes.is_warming_up(node)
        ],
        "newest_step": newest,
        "committed_step": committed,
        "steps_since_checkpoint": max(0, newest - committed),
        **msgspec.structs.asdict(read_failed_work(stored.path, job.run)),
        "notices": read_notices(stored.path, job.run),
        "lost": processes.rows(
            tuple(node for node in stored.lost if stored.slot_state(node) is SlotState.RANK)
        ),
        "last_events": EVENTS.rows(events[-LAST_EVENTS:]),
        "shown_events": EVENTS.rows(shown_events(events)),
        "ranks": RANKS.rows(ranks),
        "unreadable": list(noted.unreadable),
        **_NOT_TOLD,
    }


def _newest_events(path: Path) -> list[StoredEvent]:
    """Oldest first: so many commits, and so many others."""
    commits = {EventKind.CHECKPOINT_COMMITTED}
    found = [
        event
        for kinds in (commits, frozenset(EventKind) - commits)
        for event in read_newest_events(path, kinds, LAST_EVENTS)
    ]
    return sorted(found, key=lambda event: event.sequence)


def shown_events(events: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
    """The last events for people, oldest first, with the newest commit alone: else commits would be all that there is to see."""
    commits = [event for event in events if event.event.kind is EventKind.CHECKPOINT_COMMITTED]
    kept = [event for event in events if event not in commits[:-1]]
    return kept[-LAST_EVENTS:]


def status_of_view(view: dict[str, Any], events: Sequence[StoredEvent], *, place: str) -> dict[str, Any]:
    """The same keys from what a running scheduler shows (`recovery.core.scheduler.views.job_view`)."""
    rows = node_rows(view)
    workers = [
        row for row in rows if row["role"] == Role.WORKER.value and row["place"] == SlotState.RANK.value
    ]
    newest = max((row["step"] for row in workers), default=0)
    newest = max(newest, view["committed_step"])
    told = {node["node_id"]: node for node in view["nodes"]}
    return {
        "path": place,
        "job": view["job"],
        "run": view["run"],
        "state": view["state"],
        "stored_state": view["state"],
        "reason": view["reason"],
        "scheduler": {"pid": None, "alive": True, "incarnation": view["scheduler_incarnation"]},
        "generation": view["generation"],
        "generation_began_at_step": None,
        "world_size": view["world_size"],
        "workers_by_state": dict(Counter(row["state"] for row in workers)),
        "standbys": [row for row in rows if row["place"] == SlotState.STANDBY.value],
        "warming_up": [row["node_id"] for row in rows if row["warming_up"]],
        "newest_step": newest,
        "committed_step": view["committed_step"],
        "steps_since_checkpoint": newest - view["committed_step"],
        **{field: view.get(field) for field in (*FailedWork.__struct_fields__, "notices")},
        "lost": [
            row
            for row in rows
            if row["state"] in (*AWAY, STARTING_AGAIN) and row["place"] == SlotState.RANK.value
        ],
        "last_events": [{**row, "sequence": None} for row in EVENTS.rows(events[-LAST_EVENTS:])],
        "shown_events": [{**row, "sequence": None} for row in EVENTS.rows(shown_events(events))],
        "ranks": [
            {
                **{column.key: {**told[row["node_id"]], **row}.get(column.key) for column in RANKS.columns},
                "known_by": "scheduler",
            }
            for row in workers
        ],
        "unreadable": [],
        **_told(view),
    }


def _told(view: dict[str, Any]) -> dict[str, Any]:
    """How far training is beside its step, and what it waits for."""
    training, waits_ms = job_line.training_of(view), view.get("waits_ms")
    return {
        "epoch": training.epoch,
        "total_steps": training.total_steps,
        "loss": training.loss,
        "waits_s": None if waits_ms is None else waits_ms / 1000,
        "waits_for": job_line.waits_for(view),
        "hang": view.get("hang"),
        "stragglers": view.get("stragglers", []),
        "leaving": view.get("leaving"),
    }


def node_rows(view: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of a running scheduler's view as rows of `NODES`; what it does not show is null."""
    return [
        {
            **{column.key: node.get(column.key) for column in NODES.columns},
            **_state_of(node),
            "place": slot_state(node.get("seat", node["node_id"]), node["generation"]).value,
            "rejoin_left_s": node["rejoin_left_ms"] / 1000,
            "newest_step": node["step"] if node["rank"] is not None else None,
        }
        for node in view["nodes"]
    ]


def _state_of(node: dict[str, Any]) -> dict[str, str]:
    """Where it starts its program again, that; a scheduler of an earlier release does not say."""
    if node.get("starts_again") and node["state"] in AWAY:
        return {"state": STARTING_AGAIN, "reason": starting_again(node["reason"])}
    return {}


def step_rows(view: dict[str, Any]) -> list[dict[str, Any]]:
    """How far each worker has reported to a running scheduler that it is, as rows of `STEPS`."""
    return [
        {column.key: {"run": view["run"], **node}.get(column.key) for column in STEPS.columns}
        for node in view["nodes"]
        if node["role"] == Role.WORKER.value
    ]


def committed_step(stored: Stored) -> int:
    """Newest step of this run that every rank holds, by the scheduler's checkpoint index."""
    held = Counter(
        record.step
        for record in stored.checkpoints
        if record.run == stored.job.run and record.state is CheckpointState.COMMITTED
    )
    return max((step for step, count in held.items() if count >= stored.job.worker_count), default=0)
