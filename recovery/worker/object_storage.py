"""Object storage as one worker sees it: sends what is committed, and brings back what its disk has lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from recovery import clock
from recovery.core.held import HeldCheckpoint
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import GenerationStart
from recovery.core.policy.rollback import is_in_lineage, start_of
from recovery.core.records import CheckpointRecord, GenerationRecord, Record
from recovery.core.tiers import tier_of
from recovery.errors import CheckpointDigestError, CheckpointError, CheckpointManifestError
from recovery.objects import commits
from recovery.objects.store import ObjectStore, opened
from recovery.objects.uploads import Part, Uploads

if TYPE_CHECKING:
    from recovery.worker.held_copies import Copies

_logger = logging.getLogger("recovery.worker")
_TRIED = 2
"""Of the newest committed steps there; the ranks of a world that find the newest damaged all hold the one before."""
_TAKEN = 2
"""How often one step is taken: what a way tears once comes whole the next time, damage in the storage stays."""
_ASKED_S = 10.0
"""How long a start waits for each answer of the storage, and each piece of a file: a worker with a disk of its own must not wait for what does not come."""
_SLOW_S = 2.0
"""Behind this a start says how long it has waited."""


class ObjectStorage:
    """One per process. What blocks says so; `note_saved`, `committed` and `upload` do not."""

    def __init__(
        self,
        url: str,
        copies: Copies | None,
        still_owns_rank: Callable[[], bool],
        pin: Callable[[tuple[int, ...]], None],
        failed: Callable[[int, str], None],
        over: Callable[[Part, bool], None],
    ) -> None:
        """Prepare; nothing is asked of the storage.

        Args:
            url: of it; empty: there is none, and nothing here does anything.
            copies: says where what is brought back lies; None: recovery is off.
            still_owns_rank: asked before a name is given.
            pin: takes the steps that stay on the disk for the sake of what is in the storage. From any thread.
            failed: takes the step of an upload that failed, and why. From any thread.
            over: takes what was ordered once it is there, or (False) never will be. From any thread.
        """
        self.url, self._copies, self._still_owns_rank = url, copies, still_owns_rank
        self._uploads = Uploads(
            lambda: opened(url), pin=pin, failed=failed, over=over, leads_here=self._leads_here
        )
        self._asked: set[tuple[str, RunId, Rank]] = set()
        self._began: dict[tuple[RunId, Generation], GenerationStart] = {}
        """Where generations began, as the scheduler and their plans have said."""

    @property
    def is_on(self) -> bool:
        """Is there any?"""
        return bool(self.url) and self._copies is not None

    def note_saved(self, records: Iterable[Record]) -> None:
        """This rank has saved checkpoints, or was given a plan."""
        for record in records:
            if isinstance(record, CheckpointRecord):
                self._know(record)
            elif isinstance(record, GenerationRecord):
                self._began[record.run, record.generation] = start_of(record)
                self._uploads.pin_again()

    def committed(self, step: int) -> None:
        """All ranks hold this step on their disks."""
        if self.is_on and step:
            self._uploads.committed(step)

    def upload(self, checkpoint: HeldCheckpoint) -> None:
        """The scheduler has ordered it."""
        if self.is_on:
            self._uploads.order(Part.of(checkpoint))

    def end_training(self) -> None:
        """The job has finished: what is committed last is sent without an order."""
        self._uploads.end_training()

    @property
    def unsent_step(self) -> int:
        """The newest committed step, while it is still to be sent; 0: nothing is left."""
        unsent = self._uploads.unsent
        return unsent.step if unsent is not None else 0

    def await_sent(self, within_s: float) -> None:
        """Wait until nothing is left to be sent. Blocks.

        Args:
            within_s: so long at most; a storage that fails ends the wait before.

        Raises:
            CheckpointError: something is.
        """
        if self._uploads.finish(within_s):
            return
        still = f"{within_s:g} s were over while it was sent, or another rank's part was."
        self.give_up(self._uploads.trouble or still)

    def give_up(self, reason: str) -> None:
        """Send nothing more.

        Args:
            reason: why, a sentence.

        Raises:
            CheckpointError: something was left to be sent.
        """
        unsent = self._uploads.unsent
        self._uploads.stop()
        if unsent is not None:
            raise CheckpointError(
                "UPLOAD_NOT_FINISHED", step=unsent.step, url=self.url, reason=reason, path=unsent.path
            )

    def _leads_here(self, run: int, at: commits.At) -> bool:
        """Does a step of the storage lead to where training is now, as far as this process knows?"""
        began = [start for (of_run, _), start in [*self._began.items()] if of_run == run]
        return is_in_lineage(at.generation, at.step, began)

    def bring(
        self,
        job: str,
        run: RunId,
        rank: Rank,
        held: Iterable[HeldCheckpoint],
        began: Iterable[GenerationStart] = (),
    ) -> tuple[HeldCheckpoint, ...]:
        """Bring this rank's part of the newest step that the storage has committed and no plan has rolled back, unless it is held. Blocks.

        Asked once in a process: a process that was not restarted has its disk.

        Args:
            job: whose.
            run: of which run of it.
            rank: of which rank.
            held: what its disk has.
            began: where the newest generations of the run began, as the scheduler knows; none: nobody knows, and all steps count.

        Returns:
            What was brought, to be offered like any other; empty: nothing, and the log says why.
        """
        own = tuple(held)
        for checkpoint in own:
            self._know(checkpoint)
        if not self.is_on or (job, run, rank) in self._asked:
            return ()
        self._asked.add((job, run, rank))
        self._began.update({(run, start.generation): start for start in began})
        store, listed = self._ask(job, run)
        if store is None:
            return ()
        there = tuple(at for at in listed if self._leads_here(run, at))
        if there[:1] != listed[:1]:
            newest = listed[0]
            _logger.info(
                "event=store_step_rolled_back step=%d generation=%d newest_that_counts=%s",
                newest.step,
                newest.generation,
                there[0].step if there else "none",
            )
        # A rank that was restarted with its disk must go on to hold what another rank may come back with.
        self._uploads.note_listed(run, listed)
        brought: list[HeldCheckpoint] = []
        for at in there[:_TRIED]:
            try:
                commit = self._usable(store, job, run, at)
                if commit is None or rank >= commit.world_size:
                    continue
                if any(checkpoint.digest == commit.ranks[rank].digest for checkpoint in own):
                    break
                brought.append(self._download(store, commit, rank))
            except CheckpointError as error:
                _logger.warning("event=checkpoint_not_brought step=%d from the store: %s", at.step, error)
                continue
            # Another rank may have found damage meanwhile: it comes with the step before.
            if not _is_damaged(store, job, run, at):
                break
        return tuple(brought)

    def _ask(self, job: str, run: RunId) -> tuple[ObjectStore | None, tuple[commits.At, ...]]:
        """Ask which steps are there, newest first; no store: it did not answer in time."""
        began_ms = clock.monotonic_ms()
        try:
            store = opened(self.url, patience_s=_ASKED_S)
            there = commits.steps(store, job, run)
        except CheckpointError as error:
            waited_s = (clock.monotonic_ms() - began_ms) / 1000
            _logger.warning(
                "event=store_not_asked waited_s=%.1f training goes on without it: %s",
                waited_s,
                error.fact,
            )
            return None, ()
        waited_s = (clock.monotonic_ms() - began_ms) / 1000
        if waited_s >= _SLOW_S:
            _logger.warning("event=store_slow waited_s=%.1f the start waited for its answer", waited_s)
        if not there:
            _logger.info("event=store_has_none url=%s job=%s run=%d", self.url, job, run)
        return store, there

    def _usable(self, store: ObjectStore, job: str, run: RunId, at: commits.At) -> commits.Commit | None:
        """As `commits.read_commit`; None as well where a rank has found the step damaged."""
        if _is_damaged(store, job, run, at):
            _logger.warning("event=store_step_damaged step=%d a rank has found it so", at.step)
            return None
        return commits.read_commit(store, job, run, at)

    def _download(self, store: ObjectStore, commit: commits.Commit, rank: Rank) -> HeldCheckpoint:
        """As `commits.download`, again where not all comes, or what comes does not fit."""
        assert self._copies is not None, "it is on"
        directory = self._copies.directory(commit.job, RunId(commit.run), rank)
        for left in reversed(range(_TAKEN)):
            try:
                brought = commits.download(store, commit, rank, directory, self._still_owns_rank)
                break
            except (CheckpointDigestError, CheckpointManifestError) as error:
                if left:
                    # Other ranks may hold this step only: the one before is the worse way out.
                    _logger.warning("event=checkpoint_torn step=%d taken again: %s", commit.step, error)
                    continue
                if isinstance(error, CheckpointDigestError):
                    commits.mark_damaged(store, commit)
                raise
        _logger.info("event=checkpoint_brought step=%d url=%s path=%s", commit.step, self.url, brought.path)
        self._know(brought)
        return brought

    def _know(self, checkpoint: HeldCheckpoint | CheckpointRecord) -> None:
        # A folder has no files of one rank alone, and what is in memory is no durable step.
        if self.is_on and not checkpoint.path.endswith("/") and tier_of(checkpoint.path).is_durable:
            self._uploads.know(Part.of(checkpoint))


def _is_damaged(store: ObjectStore, job: str, run: RunId, at: commits.At) -> bool:
    """Is it known so? A storage that does not say it is found out by what is asked next."""
    try:
        return commits.is_damaged(store, job, run, at)
    except CheckpointError:
        return False
