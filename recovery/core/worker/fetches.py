"""What this process fetches from other nodes: copies of other ranks' checkpoints, and its own where its disk does not have it.

A plan that names sources waits here: the main thread is given it when its contribution lies on this node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec

from recovery.core import messages as m
from recovery.core.copy_messages import SOURCES_MAX, CopiesKept, CopyFailed, CopyOrder, CopyReport, FetchFault
from recovery.core.effects import Log
from recovery.core.ids import Generation, Rank, RequestId
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Fetch, RetainCopies, WorkerEffect
from recovery.core.worker.requests import Requests


class Fetches:
    """The fetches of one process, and what it keeps of others."""

    def __init__(self, requests: Requests) -> None:
        """Nothing is fetched."""
        self._requests = requests
        self._fetched = 0
        """How many fetches there were: names the next one."""
        self._orders: dict[int, CopyOrder] = {}
        """By fetch: the copies that are being made."""
        self.plan: m.Rollback | None = None
        """The plan that waits for its contribution, until its generation is over or begins."""
        self._plan_fetch = 0
        """Which fetch brings it; 0: none, it has failed or no plan waits."""
        self._has_copies = False
        """May there be copies on this node? Where no job ever made one, none is looked for to be removed."""
        self._oldest = 0
        """Copies of older steps may go."""
        self._oldest_in_memory = 0
        """The same of copies in memory."""

    # --- copies of other ranks -----------------------------------------------------------------------------------------

    def on_order(self, order: CopyOrder, admitted: m.Admitted | None) -> list[WorkerEffect]:
        """Make a copy, unless it is being made. It is ordered again after each reconnect until it was reported."""
        if admitted is None or order.run != admitted.run:
            return []
        self._has_copies = True
        wanted = (order.rank, order.checkpoint.digest)
        if any((known.rank, known.checkpoint.digest) == wanted for known in self._orders.values()):
            return []
        fetch = self._fetch(admitted.job, order.rank, order.checkpoint, order.sources)
        self._orders[fetch.fetch_id] = order
        return [fetch]

    def on_kept(self, kept: CopiesKept, past: m.JobHistory | None) -> list[WorkerEffect]:
        """All copies of a step are complete: older ones may go."""
        self._has_copies = True
        self._oldest, self._oldest_in_memory = kept.oldest, kept.oldest_in_memory
        return self._retain(past)

    def note_held(self, copies: Sequence[m.HeldCopy]) -> None:
        """Copies were found on this node."""
        self._has_copies = self._has_copies or bool(copies)

    def planned(self, plan: m.Rollback, past: m.JobHistory | None) -> list[WorkerEffect]:
        """A plan is followed: what is newer than its step belongs to a suffix that is trained again, and what it needs stays."""
        self.plan, self._plan_fetch = None, 0
        self._oldest = min(self._oldest, plan.step)
        self._oldest_in_memory = min(self._oldest_in_memory, plan.step)
        return self._retain(past) if self._has_copies else []

    def _retain(self, past: m.JobHistory | None) -> list[WorkerEffect]:
        if past is None:
            return []
        return [RetainCopies(past.job, past.run, self._oldest, past.began, self._oldest_in_memory)]

    # --- this node's own, for a plan -----------------------------------------------------------------------------------

    def wait_for(self, plan: m.Rollback, job: str) -> list[WorkerEffect]:
        """Fetch what a plan goes back to: other nodes have it, and this one does not."""
        self._has_copies = True
        wanted = m.HeldCheckpoint(
            run=plan.run,
            generation=plan.written,
            step=plan.step,
            epoch=plan.epoch,
            step_in_epoch=plan.step_in_epoch,
            path="",
            digest=plan.digest,
            file_bytes=plan.file_bytes,
        )
        fetch = self._fetch(job, plan.rank, wanted, plan.sources)
        fetch = msgspec.structs.replace(fetch, for_plan=True)
        self.plan, self._plan_fetch = plan, fetch.fetch_id
        text = f"this node does not have its checkpoint of step {plan.step}; fetching it from {_names(plan.sources)}"
        return [Log("checkpoint_fetched_from", text), fetch]

    def ends(self, generation: Generation) -> bool:
        """A generation is over. Is it that of the plan that waits? Then that one will not be followed any more."""
        if self.plan is None or generation < self.plan.generation:
            return False
        self.forget_plan()
        return True

    def forget_plan(self) -> None:
        """No plan waits any more. What comes of its fetch lies here all the same."""
        self.plan, self._plan_fetch = None, 0

    # --- what came of a fetch ------------------------------------------------------------------------------------------

    def on_fetched(self, fetched: s.Fetched) -> tuple[m.Rollback | None, list[WorkerEffect]]:
        """It lies here. Gives the plan that can be followed now, if it was that one's; and what is to be said."""
        faults: list[WorkerEffect] = []
        of = self._of(fetched.fetch_id)
        if fetched.failures and of is not None:
            faults = self._failed(RequestId(f"{fetched.request_id}.f"), of, fetched.failures, gives_up=False)
        if isinstance(of, m.Rollback):
            assert fetched.checkpoint.digest == of.digest, "what is fetched is what the plan named"
            return msgspec.structs.replace(of, path=fetched.checkpoint.path, sources=()), faults
        if of is None:
            return None, []
        del self._orders[fetched.fetch_id]
        assert fetched.checkpoint.digest == of.checkpoint.digest, "what is copied is what was ordered"
        report = CopyReport(request_id=fetched.request_id, rank=of.rank, checkpoint=fetched.checkpoint)
        return None, [*faults, *self._requests.send(report)]

    def on_failed(self, failed: s.FetchFailed) -> list[WorkerEffect]:
        """It did not come: the scheduler plans from something else, or copies the next step."""
        of = self._of(failed.fetch_id)
        if of is None:
            return []
        self._orders.pop(failed.fetch_id, None)
        if isinstance(of, m.Rollback):
            self._plan_fetch = 0
        return self._failed(failed.request_id, of, failed.failures, gives_up=True, own=failed.reason)

    def _of(self, fetch_id: int) -> Union[CopyOrder, m.Rollback, None]:
        if self.plan is not None and fetch_id == self._plan_fetch:
            return self.plan
        return self._orders.get(fetch_id)

    def _failed(
        self,
        request_id: RequestId,
        of: Union[CopyOrder, m.Rollback],
        failures: Sequence[FetchFault],
        *,
        gives_up: bool,
        own: str = "",
    ) -> list[WorkerEffect]:
        wanted = of if isinstance(of, m.Rollback) else of.checkpoint
        request = CopyFailed(
            request_id=request_id,
            run=of.run,
            rank=of.rank,
            step=wanted.step,
            digest=wanted.digest,
            failures=tuple(_fitting(fault) for fault in failures[:SOURCES_MAX]),
            gives_up=gives_up,
            generation=of.generation if isinstance(of, m.Rollback) else Generation(0),
            reason=own[:1024],
        )
        why = "; ".join(
            [*(f"{fault.source.node_id}: {fault.reason}" for fault in failures), *([own] if own else [])]
        )
        text = f"step {wanted.step} of rank {of.rank} was not fetched: {why}"
        return [*self._requests.send(request), Log("fetch_failed", text, warning=True)]

    def _fetch(
        self, job: str, rank: Rank, checkpoint: m.HeldCheckpoint, sources: tuple[m.Source, ...]
    ) -> Fetch:
        self._fetched += 1
        return Fetch(self._fetched, job, rank, checkpoint, sources)

    def check(self, *, idle: bool) -> None:
        """Assert what is always true of the fetches. `idle`: the main thread waits for a plan, or the process ends."""
        assert self.plan is None or idle, "a plan that waits for its file has not begun"
        assert self.plan is not None or not self._plan_fetch, "nothing is fetched for no plan"
        wanted = [(order.rank, order.checkpoint.digest) for order in self._orders.values()]
        assert len(set(wanted)) == len(wanted), "a copy is made once at a time"


def _names(sources: Sequence[m.Source]) -> str:
    return ", ".join(source.node_id for source in sources)


def _fitting(fault: FetchFault) -> FetchFault:
    return msgspec.structs.replace(fault, reason=fault.reason[:1024])
