"""Which node holds which checkpoint: ranks their own, other nodes copies. A step is committed when every rank of the world holds its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from recovery.core.copy_index import CopyIndex, StepHolders, Steps
from recovery.core.copy_records import CopyRecord
from recovery.core.failed_work import FailedWork
from recovery.core.held import HeldCheckpoint, Skipped
from recovery.core.ids import Generation, Rank
from recovery.core.policy import rollback
from recovery.core.policy.next_plan import Facts
from recovery.core.policy.replica_difference import APART
from recovery.core.policy.retention import oldest_indexed
from recovery.core.policy.rollback import LOST_MEMORY, MISSING, Unusable
from recovery.core.records import CheckpointRecord, CheckpointState, GenerationRecord, to_held, to_record
from recovery.core.tiers import tier_of


class CheckpointIndex:
    """The checkpoint index of one run. Knows no connection and no time: which of the holders is here is the caller's business."""

    def __init__(self, world_size: int) -> None:
        """Start with an empty index for ranks 0..world_size-1."""
        self._ranks = [Rank(rank) for rank in range(world_size)]
        self._steps = Steps()
        self.copies = CopyIndex(self._steps)
        """What other nodes hold of the ranks' checkpoints."""
        self._invalid: set[tuple[Rank, int, str]] = set()
        """Rank, step and digest of what has failed: it is never used again."""
        self._fetched: set[tuple[Rank, int, str, str]] = set()
        """What a rank has fetched again, also where it lies: it was verified, whatever the rank's first file of that step is like."""
        self.fetched_when_stopped: set[int] = set()
        """Steps that a rank was fetching from other nodes when the scheduler's last process ended."""
        self.committed_step = 0
        """The newest step that all ranks hold, on whatever it lies."""
        self.durable_step = 0
        """The newest one of which all ranks' files lie on disks: what is kept for it outlasts any host."""
        self.failed_work = FailedWork()
        """What failed beside training, by what the nodes have reported to this scheduler and to those before it."""
        self._ever_committed = False
        """Did any step of this run ever lie on all ranks' disks? Until then a return to step 0 loses nothing that was promised."""
        self.replicas_apart = False
        """Training makes the ranks differ in what they were to have alike: nothing is compared, and every row says so to the scheduler's next process."""

    def load(
        self,
        records: Iterable[CheckpointRecord],
        generations: Sequence[GenerationRecord],
        live: Collection[Generation] = (),
    ) -> None:
        """Take over what is stored of this run. Of the plans `live` went to ranks' memories: no step was ever stored for them."""
        records = tuple(records)
        self.replicas_apart = any(record.replica == APART for record in records)
        in_memory = {record.step for record in records if not tier_of(record.path).is_durable}
        self._ever_committed = any(
            record.step and record.step not in in_memory and record.generation not in live
            for record in generations
        )
        usable: list[tuple[CheckpointRecord, HeldCheckpoint]] = []
        for record in records:
            is_durable = record.state is CheckpointState.COMMITTED and record.step not in in_memory
            self._ever_committed = self._ever_committed or is_durable
            if record.state is CheckpointState.INVALID:
                self._invalid.add((record.rank, record.step, record.digest))
                self._note_unusable(record.rank, record.step, record.path, record.reason)
            elif record.state is CheckpointState.FETCHING:
                self.fetched_when_stopped.add(record.step)
            elif record.state is not CheckpointState.RETIRED:
                usable.append((record, self._noted(to_held(record))))
        of_lineage = {*rollback.in_lineage((held for _, held in usable), generations)}
        for record, held in usable:
            if held in of_lineage:
                holders = self._steps.open(record.step)
                holders.own[record.rank] = held
                holders.was_committed |= record.state is CheckpointState.COMMITTED
        self.committed_step = max(self._common_steps(), default=0)
        self.durable_step = self._newest_durable()

    @property
    def is_empty(self) -> bool:
        """Has no rank a checkpoint?"""
        return not any(holders.own for _, holders in self._steps.items())

    def knows(self, rank: Rank, checkpoint: HeldCheckpoint) -> bool:
        """Is exactly this file in the index, as good or as bad?"""
        return self._is_bad(rank, checkpoint) or self.file_of(rank, checkpoint.step) == self._noted(
            checkpoint
        )

    def _is_bad(self, rank: Rank, checkpoint: HeldCheckpoint) -> bool:
        named = (rank, checkpoint.step, checkpoint.digest)
        return named in self._invalid and (*named, checkpoint.path) not in self._fetched

    def committed_records(self, step: int) -> list[CheckpointRecord]:
        """The rows of a step that all ranks hold, one per rank."""
        own = self._steps.at(step).own
        return [to_record(rank, own[rank], CheckpointState.COMMITTED) for rank in self._ranks]

    def record_of(self, rank: Rank, checkpoint: HeldCheckpoint) -> CheckpointRecord:
        """The row of what a rank has just saved, or found again.

        A step that was committed stays so, also where another rank has lost its file: the rows alone tell the scheduler's next process that training
        may not start over.
        """
        stays = self._steps.at(checkpoint.step).was_committed
        state = CheckpointState.COMMITTED if stays else CheckpointState.PUBLISHED
        return to_record(rank, self._noted(checkpoint), state)

    def held_records(self) -> list[CheckpointRecord]:
        """All that is in the index of ranks' own, newest step first, by rank."""
        return [
            to_record(
                rank,
                held,
                CheckpointState.COMMITTED if self._is_common(holders) else CheckpointState.PUBLISHED,
            )
            for _, holders in sorted(self._steps.items(), reverse=True)
            for rank, held in sorted(holders.own.items())
        ]

    def held_by(self, rank: Rank) -> tuple[HeldCheckpoint, ...]:
        """What the index says of a rank's own files, oldest first."""
        return tuple(self._steps.of_rank(rank).values())

    def file_of(self, rank: Rank, step: int) -> HeldCheckpoint | None:
        """What the index says of a rank's own file of a step."""
        return self._steps.at(step).own.get(rank)

    def files_of(self, step: int) -> tuple[HeldCheckpoint, ...]:
        """What the index says of all ranks' own files of a step."""
        return tuple(self._steps.at(step).own.values())

    def is_file_of(self, rank: Rank, step: int, path: str) -> bool:
        """Is this a rank's own file of a step, or was it, before it failed?"""
        holders = self._steps.at(step)
        own, unusable = holders.own.get(rank), holders.unusable.get(rank)
        return bool(path) and path in (own and own.path, unusable and unusable.path)

    def needed_of(self, rank: Rank) -> HeldCheckpoint | None:
        """A rank's file of the newest step that lies on all ranks' disks; None: there is no such step.

        What lies in memory is none that another host could need: it is gone with the rank's own.
        """
        step = self._newest_durable()
        return self.file_of(rank, step) if step else None

    def positions_differ(self, step: int) -> str:
        """Say where the ranks stand, if all hold a step and it is no common place all the same; empty otherwise."""
        own = self._steps.at(step).own
        return rollback.positions_differ(own) if len(own) == len(self._ranks) else ""

    def replicas_with(self, rank: Rank, checkpoint: HeldCheckpoint) -> Mapping[Rank, str]:
        """What all ranks' files of a step say of what must be alike, this new one with them.

        Empty: not all hold it, or at different places, it counts already, or nothing is compared.
        """
        holders = self._steps.at(checkpoint.step)
        own = {**holders.own, rank: checkpoint}
        if (
            self.replicas_apart
            or holders.was_committed
            or not rollback.is_at_one_place(own, len(self._ranks))
        ):
            return {}
        return {other: own[other].replica for other in self._ranks}

    def let_replicas_differ(self) -> None:
        """It is training that makes the ranks differ: from here on nothing is compared in this run."""
        self.replicas_apart = True
        for holders in self._steps.values():
            holders.own = {rank: self._noted(held) for rank, held in holders.own.items()}

    def _noted(self, checkpoint: HeldCheckpoint) -> HeldCheckpoint:
        return msgspec.structs.replace(checkpoint, replica=APART) if self.replicas_apart else checkpoint

    def given_up(self, target: int) -> Mapping[int, Mapping[Rank, Unusable]]:
        """Newer committed steps than `target` that cannot be gone back to, newest first: whose file, and why."""
        return {
            step: dict(sorted(holders.unusable.items()))
            for step, holders in sorted(self._steps.items(), reverse=True)
            if holders.was_committed and step > target
        }

    def facts(
        self,
        *,
        allow_restart_from_zero: bool,
        copied: Mapping[int, Mapping[Rank, HeldCheckpoint]] = MappingProxyType({}),
    ) -> Facts:
        """What the index knows of the facts that the next plan is decided by.

        `copied`: by step and rank, what other nodes can give it. Its own file goes first.
        """
        given_up = self.given_up(0)
        files = {
            step: [(rank, held) for rank, held in self._steps.at(step).own.items() if not held.is_folder]
            for step in given_up
        }
        return Facts(
            world_size=len(self._ranks),
            held={
                step: {
                    rank: self._noted(held)
                    for rank, held in {**copied.get(step, {}), **self._steps.at(step).own}.items()
                }
                for step in {*self._steps, *copied}
            },
            of_one={step: min(of_step) for step, of_step in files.items() if of_step},
            given_up=given_up,
            ever_committed=self._ever_committed,
            allow_restart_from_zero=allow_restart_from_zero,
        )

    @property
    def durable_unless_committed(self) -> int | None:
        """`durable_step` as messages say it: None where it is the committed step."""
        return None if self.durable_step == self.committed_step else self.durable_step

    def add(self, rank: Rank, checkpoint: HeldCheckpoint) -> bool:
        """A rank holds one more that is not in the index yet (`knows`). Returns whether its step is committed by it.

        A step can be on its way to the disks while a newer one is committed in memory: then it is committed behind that one.
        """
        step, holders = checkpoint.step, self._steps.open(checkpoint.step)
        holders.own[rank] = self._noted(checkpoint)
        holders.unusable.pop(rank, None)
        if not self._is_common(holders):
            return False
        becomes_durable = step > self.durable_step and self._is_durable(holders)
        if step <= self.committed_step and not becomes_durable:
            return False
        self.committed_step = max(self.committed_step, step)
        if becomes_durable:
            self.durable_step, self._ever_committed = step, True
        holders.was_committed = True
        return True

    def replace(
        self, rank: Rank, held: Iterable[HeldCheckpoint], passed_over: Sequence[Skipped] = ()
    ) -> None:
        """A rank has looked: it holds these of the lineage and no others, for the reasons in `passed_over`. Those known to be bad are left out."""
        before = self._steps.of_rank(rank)
        for step in before:
            del self._steps[step].own[rank]
        for checkpoint in held:
            if not self._is_bad(rank, checkpoint):
                self._steps.open(checkpoint.step).own[rank] = self._noted(checkpoint)
        reasons: dict[str | int, str] = {
            skipped.step: skipped.reason for skipped in passed_over if skipped.step
        }
        reasons.update((skipped.path, skipped.reason) for skipped in passed_over)
        for step, holders in self._steps.items():
            if not holders.was_committed:
                continue
            if rank in holders.own:
                holders.unusable.pop(rank, None)
                continue
            known = holders.unusable.get(rank)
            path = before[step].path if step in before else known.path if known is not None else ""
            directory = path.rpartition("/")[0]
            reason = reasons.get(path) or reasons.get(directory) or reasons.get(step)
            if reason is not None or known is None:
                on_disk = tier_of(path).is_durable
                missing = MISSING if on_disk else LOST_MEMORY
                holders.unusable[rank] = Unusable(
                    path=path, reason=reason or missing, is_missing=on_disk and not reason
                )

    def reject(self, rank: Rank, step: int, reason: str) -> HeldCheckpoint | None:
        """A rank's file failed. It is never used again; returns what the index said of it."""
        holders = self._steps.at(step)
        checkpoint = holders.own.pop(rank, None)
        if checkpoint is not None:
            self._invalid.add((rank, step, checkpoint.digest))
            self._fetched.discard((rank, step, checkpoint.digest, checkpoint.path))
            # It is a file of a plan, so every rank held the step.
            holders.was_committed = True
            self._note_unusable(rank, step, checkpoint.path, reason)
        return checkpoint

    def refuse(self, rank: Rank, checkpoint: HeldCheckpoint) -> None:
        """What a rank has saved of a step that no rank was told of is never used."""
        self._steps.open(checkpoint.step).own.pop(rank, None)
        self._invalid.add((rank, checkpoint.step, checkpoint.digest))

    def bring_back(self, rank: Rank, checkpoint: HeldCheckpoint) -> CheckpointRecord:
        """A rank has fetched from others what its plan goes back to; the row that says that it holds it again."""
        holders = self._steps.open(checkpoint.step)
        self._fetched.add((rank, checkpoint.step, checkpoint.digest, checkpoint.path))
        holders.own[rank] = checkpoint = self._noted(checkpoint)
        holders.unusable.pop(rank, None)
        if checkpoint.step > self.durable_step and self._is_durable(holders):
            self.durable_step, self._ever_committed = checkpoint.step, True
        return to_record(rank, checkpoint, CheckpointState.COMMITTED)

    def note_not_fetched(self, rank: Rank, step: int, reason: str) -> None:
        """A rank could not fetch what its plan went back to."""
        self._steps.open(step).was_committed = True
        self._note_unusable(rank, step, "", reason)

    def retire(self, *needed: int) -> list[CheckpointRecord]:
        """Take out of the index what `policy/retention.py` does not keep there; the rows that say so.

        Needed, and kept, are the plan's step, which may be sent again, and one that is being copied, which may be ordered again.
        """
        common = self._common_steps()
        in_memory = [step for step in common if not self._is_durable(self._steps[step])]
        oldest, oldest_in_memory = oldest_indexed(common, in_memory, self.durable_step)
        goes = [
            (step, rank)
            for step, holders in self._steps.items()
            for rank, checkpoint in holders.own.items()
            if step < oldest or (step < oldest_in_memory and not tier_of(checkpoint.path).is_durable)
            if step not in needed
        ]
        rows = [
            to_record(rank, self._steps[step].own.pop(rank), CheckpointState.RETIRED) for step, rank in goes
        ]
        for step in {*(step for step, _ in goes), *(step for step in self._steps if step < oldest)}:
            self._steps[step].was_committed = False
            self._steps[step].unusable.clear()
        for step in [step for step, holders in self._steps.items() if not holders]:
            del self._steps[step]
        return rows

    def roll_back(
        self,
        step: int,
        fetched: Mapping[Rank, HeldCheckpoint] = MappingProxyType({}),
        *,
        is_stored: bool = True,
    ) -> list[CopyRecord]:
        """Training goes on from `step`: what is newer belongs to a suffix that is trained again; the rows that say so of copies.

        Args:
            step: 0: from the start.
            fetched: what ranks do not hold and fetch for it, as it lies at the nodes that give it.
            is_stored: False: it goes on from a rank's memory. That commits nothing: newer than the newest common step, it is gone with its process.
        """
        is_durable = is_stored and step > 0 and self._steps.at(step).lies_on_disks(self._ranks, fetched)
        gone = self.copies.roll_back(step)
        for newer in [known for known in self._steps if known > step]:
            del self._steps[newer]
        # Older than the index reaches is what was reported for this plan alone.
        common = self._common_steps()
        oldest, _ = oldest_indexed(common, (), 0)
        for older in [known for known in self._steps if known < oldest]:
            self._steps[older].own.clear()
        self.committed_step = step if is_stored else max(common, default=0)
        self.durable_step = step if is_durable else self._newest_durable()
        # The ranks hear of it, and let go what is older: from now on it is promised.
        self._ever_committed = self._ever_committed or self.durable_step > 0
        if self.committed_step:
            self._steps.open(self.committed_step).was_committed = True
        return gone

    def _note_unusable(self, rank: Rank, step: int, path: str, reason: str) -> None:
        self._steps.open(step).unusable[rank] = Unusable(path=path, reason=reason)

    def _is_common(self, holders: StepHolders) -> bool:
        is_alike = rollback.is_at_one_place if holders.was_committed else rollback.is_common
        return is_alike(holders.own, len(self._ranks))

    def _is_durable(self, holders: StepHolders) -> bool:
        """Do all ranks hold a step, and on disks?"""
        return holders.lies_on_disks(self._ranks, {})

    def _common_steps(self) -> list[int]:
        return sorted(step for step, holders in self._steps.items() if self._is_common(holders))

    def _newest_durable(self) -> int:
        common = self._common_steps()
        return max((step for step in common if self._is_durable(self._steps[step])), default=0)
