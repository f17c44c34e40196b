"""What a worker and the scheduler say to each other about checkpoints: saved, damaged, held, committed."""

from __future__ import annotations

from functools import partial

import msgspec

from recovery.core import messages as m
from recovery.core.copy_messages import UploadOrder, UploadReport
from recovery.core.effects import Log, Persist, Report
from recovery.core.ids import Generation, Rank
from recovery.core.policy.message_share import copies_that_fit, newest_that_fit
from recovery.core.records import CheckpointState, to_record
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import FindCheckpoints, Retain, Send, Upload, WorkerEffect
from recovery.core.worker.requests import Requests


class CheckpointMessages:
    """The checkpoints of one process, as far as the scheduler must know them."""

    def __init__(self, rules: Rules, requests: Requests) -> None:
        """Nothing is held yet."""
        self._rules, self._requests = rules, requests
        self._committed_step = 0
        """The newest step that all ranks hold, as far as this worker knows; 0: none."""
        self._durable_step: int | None = None
        """The newest that lies on all ranks' disks (0: none), where a newer one is only in memory; None: it is the committed step."""
        self._pinned: tuple[int, ...] = ()
        """Steps that stay although they are older: what lies on other hosts, and what is being copied there."""
        self._pinned_in_memory: tuple[int, ...] = ()
        """The same in memory."""
        self._searches = 0
        """How many searches were asked for: names the next one."""
        self.ready: m.Ready | None = None
        """What this worker is ready with. Set while its main thread waits for a plan and the directories have been searched."""

    def all_hold(self, step: int) -> bool:
        """Do all ranks hold this step of training, or a later one, on their disks?"""
        durable = self._committed_step if self._durable_step is None else self._durable_step
        return 0 < step <= durable

    def send_ready(self) -> list[WorkerEffect]:
        """Say again that this worker is ready, if it is."""
        return [Send(self.ready)] if self.ready is not None else []

    def admitted(self, admitted: m.Admitted) -> None:
        """The scheduler has said at the admission which step is committed."""
        self._committed_step, self._durable_step = admitted.committed_step, admitted.durable_step

    def joined(self) -> None:
        """This process is new to the scheduler, whose job may be another one: what was said before says nothing of what it knows of that."""
        self.ready = None

    def planned(self, plan: m.Rollback) -> None:
        """A plan is followed: a worker that trains is not ready for the next one."""
        self._committed_step, self._durable_step = plan.committed_step, plan.durable_step
        self.ready = None

    def retain(self) -> list[WorkerEffect]:
        """Let older files go, as far as is known."""
        if not self._committed_step:
            return []
        return [Retain(self._committed_step, self._pinned, self._durable_step, self._pinned_in_memory)]

    def on_committed(self, committed: m.Committed) -> list[WorkerEffect]:
        """All ranks hold this step: older files may go."""
        self._committed_step, self._durable_step = committed.step, committed.durable_step
        self._pinned = tuple(step for step in (committed.copied, committed.copying) if step)
        self._pinned_in_memory = tuple(
            step for step in (committed.copied_in_memory, committed.copying) if step
        )
        return self.retain()

    def on_published(self, published: s.CheckpointPublished, rank: Rank | None) -> list[WorkerEffect]:
        """A file is complete: report it, once this worker's own store has its row."""
        assert rank is not None, "a worker that saves has a rank"
        report = m.CheckpointReport(
            request_id=published.request_id,
            checkpoint=published.checkpoint,
            replica=dict(published.replica),
        )
        self._requests.keep_until_stored(report)
        row = to_record(rank, published.checkpoint, CheckpointState.PUBLISHED)
        return [Persist((row,), (Report(report),))]

    def on_save_failed(self, failed: s.SaveFailed) -> list[WorkerEffect]:
        """A save or an upload failed: the scheduler counts it."""
        request = m.NotSaved(
            request_id=failed.request_id,
            step=failed.step,
            reason=failed.reason[:1024],
            in_memory=failed.in_memory,
            uploading=failed.uploading,
        )
        return self._requests.send(request)

    @staticmethod
    def on_upload_order(order: UploadOrder, admitted: m.Admitted | None) -> list[WorkerEffect]:
        """It is this rank's turn to send what all ranks send."""
        return [Upload(order.checkpoint)] if admitted is not None and order.run == admitted.run else []

    def on_uploaded(self, uploaded: s.Uploaded) -> list[WorkerEffect]:
        """What was ordered is in object storage, or never will be."""
        request = UploadReport(
            request_id=uploaded.request_id,
            step=uploaded.step,
            digest=uploaded.digest,
            is_there=uploaded.is_there,
        )
        return self._requests.send(request)

    def on_rejected(self, bad: s.CheckpointRejected) -> list[WorkerEffect]:
        """The plan's file does not verify: the scheduler must plan from an older one."""
        request = m.CheckpointInvalid(
            request_id=bad.request_id,
            generation=bad.generation,
            step=bad.step,
            path=bad.path[-1024:],
            reason=bad.reason[:1024],
        )
        return [*self._requests.send(request), Log("checkpoint_invalid", bad.reason, warning=True)]

    def find(self, admitted: m.Admitted, rank: Rank | None, past: m.JobHistory | None) -> FindCheckpoints:
        """Have the directories searched. `rank` is what this process had before; the admission's counts more. `past`: of the job that it trained."""
        of_another_job = past is not None and past.job != admitted.job
        known = rank if admitted.rank is None else admitted.rank
        self._searches += 1
        of_past = past if of_another_job else None
        return FindCheckpoints(
            self._searches, admitted.job, admitted.run, known, of_past, began=admitted.began
        )

    def find_offered(self, admitted: m.Admitted, offer: m.Offer) -> FindCheckpoints:
        """Have them searched for the files of a rank that was offered to this process."""
        self._searches += 1
        return FindCheckpoints(
            self._searches, admitted.job, offer.run, offer.rank, offer=offer, began=offer.began
        )

    def is_newest(self, found: s.CheckpointsFound) -> bool:
        """Is it of the search that was asked for last? What an older one found is of an earlier job, or of another rank than the one offered since."""
        return found.search_id == self._searches

    def on_found(
        self,
        found: s.CheckpointsFound,
        generation: Generation,
        step: int,
        stopped: s.TrainingStopped | None = None,
    ) -> list[WorkerEffect]:
        """The directories were searched: this worker is ready for a plan. Each list of its message is bounded.

        `stopped`: how it has left its training; None: it has not trained in this job.
        """
        committed_step, bytes_max = self._committed_step, self._rules.frame_bytes_max
        fitting = partial(newest_that_fit, committed_step=committed_step, frame_bytes_max=bytes_max)
        copies_fitting = partial(copies_that_fit, committed_step=committed_step, frame_bytes_max=bytes_max)
        held, named, past = fitting(found.held), found.passed_over[: m.SKIPPED_MAX], found.past
        if past is not None:
            past = msgspec.structs.replace(past, held=fitting(past.held), copies=copies_fitting(past.copies))
        self.ready = m.Ready(
            request_id=found.request_id,
            generation=generation,
            step=step,
            held=held,
            left_out=len(found.held) - len(held),
            passed_over=named,
            passed_over_more=len(found.passed_over) - len(named),
            past=past,
            rank=found.rank,
            copies=copies_fitting(found.copies),
            live=stopped.live if stopped is not None else None,
            not_live=stopped.not_live[:1024] if stopped is not None else "",
        )
        if not self.ready.left_out:
            return [Send(self.ready)]
        text = f"reporting the newest {len(held)} of {len(found.held)} checkpoints: a message carries no more"
        return [Send(self.ready), Log("checkpoints_left_out", text, warning=True)]
