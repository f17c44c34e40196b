"""Which checkpoints may go? One rule a holder, and one above all of them: what a rollback could still need stays.

| held by | what stays | asked by |
|---|---|---|
| a rank's disk | MindSpore's two rules, and what is newer than the newest committed step but one (`removable`) | `checkpoint/retention.py` |
| a rank's memory | what can be gone back to until all disks have a newer step (`kept_in_memory`) | `training/memory_checkpoints.py` |
| another node's disk or memory | the two newest steps that are copied as a whole, on disks; the newest, in memory (`copy_is_needed`) | `worker/copy_work.py`, and `core/copy_index.py` behind it |
| object storage | the `OBJECT_STEPS` newest that are committed there | `objects/commits.py` |
| the scheduler's index | the `INDEXED_STEPS` newest common ones (`oldest_indexed`) | `core/checkpoints.py` |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from recovery.core.held import HeldCheckpoint
from recovery.core.ids import Generation
from recovery.core.tiers import tier_of

INDEXED_STEPS = 16
"""Common steps that stay in the index. A plan asks every rank again which files it holds, so older ones are only history; a job of 1,000
ranks that kept all of them would need 0.5 MB of memory for each save and read all of them at each start of the scheduler. Fewer would hide
from people what the ranks' directories still hold."""
IN_MEMORY_STEPS = 2
"""Common steps in memory that stay in the index: each rank holds no more of them (`kept_in_memory`)."""
OBJECT_STEPS = 3
"""Committed steps that stay in object storage, the newest."""

_SECONDS_PER_MINUTE = 60


class Kept(msgspec.Struct, frozen=True):
    """A checkpoint that is there."""

    step: int
    saved_wall_s: float
    """When it was saved, seconds of the wall clock (its file's time): the processes of a node share no other clock."""


def removable(
    held: Sequence[Kept],
    *,
    previous_durable_step: int,
    keep_checkpoint_max: int,
    keep_checkpoint_per_n_minutes: int,
    pinned: Collection[int] = (),
) -> tuple[int, ...]:
    """Name the steps that may be deleted now, oldest first.

    The two newest committed steps and everything newer always stay: the newest is where all ranks can go back to, the other one
    where they go when a file of it is damaged, what is newer may become that at any moment. So does what is pinned: a rank that has
    lost its disk can go back to where others hold its copy, and everybody must go there with it.

    Args:
        held: one entry per step, in any order.
        previous_durable_step: newest step but one that every rank holds; 0: fewer than two are known, nothing goes.
        keep_checkpoint_max: how many to keep, the newest; 0: the other rule decides. It wins when both are given.
        keep_checkpoint_per_n_minutes: keep one per this many minutes, the first of each stretch; 0: no rule.
        pinned: the newest step of which all copies are complete, and the one that is being copied.

    A wall clock set back keeps more for a while, never less: a step saved "before" the one ahead of it starts a new stretch.
    """
    ordered = sorted(held, key=lambda kept: kept.step)
    if keep_checkpoint_max:
        surplus = [kept.step for kept in ordered[:-keep_checkpoint_max]]
    elif keep_checkpoint_per_n_minutes:
        surplus = _within_a_stretch(ordered, stretch_s=keep_checkpoint_per_n_minutes * _SECONDS_PER_MINUTE)
    else:
        surplus = []
    return tuple(step for step in surplus if step < previous_durable_step and step not in pinned)


def _within_a_stretch(ordered: Sequence[Kept], *, stretch_s: int) -> list[int]:
    """Steps saved less than `stretch_s` after the last one that stays."""
    surplus: list[int] = []
    stays: Kept | None = None
    for kept in ordered:
        if stays is not None and 0 <= kept.saved_wall_s - stays.saved_wall_s < stretch_s:
            surplus.append(kept.step)
        else:
            stays = kept
    return surplus


def kept_in_memory(
    held: Sequence[HeldCheckpoint], *, committed_step: int, newest_on_disks: int, pinned: Collection[int] = ()
) -> list[HeldCheckpoint]:
    """Choose what stays in a rank's memory, newest first.

    The newest that all ranks hold stays, and until that is the newest of all, the two newest: ranks are one save apart at most. What is
    older than the newest on the disks of all ranks goes all the same: no plan goes there while that is whole.

    Args:
        held: what lies there, newest first.
        committed_step: the newest step that every rank holds, on whatever it lies.
        newest_on_disks: the newest step on the disks of all ranks; 0: there is none.
        pinned: what lies in other hosts' memory as a whole, and what is being copied there: a rank that has lost its host goes back to that.
    """
    committed = [checkpoint for checkpoint in held if checkpoint.step <= committed_step][:1]
    newest = held[:1] if committed == list(held[:1]) else held[:2]
    return [
        checkpoint
        for checkpoint in held
        if checkpoint.step in pinned
        or (checkpoint.step >= newest_on_disks and (checkpoint in newest or checkpoint in committed))
    ]


def copy_is_needed(
    copy: HeldCheckpoint, *, oldest: int, oldest_in_memory: int, began: Iterable[tuple[Generation, int]] = ()
) -> bool:
    """Can a plan still go to a copy?

    Args:
        copy: of this run.
        oldest: the newest step but one of which all copies on disks are complete; 0: there are not two.
        oldest_in_memory: the newest step of which all copies are complete; 0: there is none.
        began: of plans of this run, each generation with the step at which it began.
    """
    rolled_back = any(copy.generation < generation and copy.step > step for generation, step in began)
    kept_from = oldest if tier_of(copy.path).is_durable else oldest_in_memory
    return copy.step >= kept_from and not rolled_back


def oldest_indexed(common: Sequence[int], in_memory: Sequence[int], durable_step: int) -> tuple[int, int]:
    """Say which common steps stay in the index: from the first on, and of those in memory from the second on. 0: all of them.

    `in_memory`: those of them that do not lie on all disks. `durable_step`: the newest that does; 0: none.
    """
    oldest = common[-INDEXED_STEPS] if len(common) >= INDEXED_STEPS else 0
    oldest_in_memory = in_memory[-IN_MEMORY_STEPS] if len(in_memory) >= IN_MEMORY_STEPS else 0
    return oldest, max(oldest_in_memory, durable_step)
