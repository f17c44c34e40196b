"""How often a process has been replaced because its main thread did not come back, and when that is enough."""

from __future__ import annotations

from recovery.core.ids import Generation, RequestId
from recovery.core.messages import Failure
from recovery.core.worker.effects import ReplaceProcess
from recovery.core.worker.stimuli import Hangs

REPLACEMENTS_MAX = 3
"""How often in a row, without a new step, a process whose main thread hangs is replaced. A call that hung by bad luck comes through the
first time; what hangs at the same step in every program is the program's own. Half of it would give up after one more bad moment, twice
of it costs everybody three more rollbacks."""


class HangCounter:
    """Counts over the programs that follow each other in one process."""

    def __init__(self) -> None:
        """No program came before this one, and it has applied no step."""
        self._before = Hangs()
        """What the program before this one handed over."""
        self._newest_step = 0
        """The newest step that this program has applied; 0: none."""

    @property
    def total(self) -> Hangs:
        """For the program that takes this process over. A step that none before it had applied makes the count begin again."""
        progressed = self._newest_step > self._before.step
        return Hangs(0 if progressed else self._before.count, max(self._before.step, self._newest_step))

    def begin(self, before: Hangs) -> None:
        """The process is up; take over what the program before it has counted."""
        self._before = before

    def applied(self, step: int) -> None:
        """The main thread has applied this step."""
        self._newest_step = max(self._newest_step, step)

    def on_hang(self, reason: str, request_id: RequestId, generation: Generation) -> ReplaceProcess | Failure:
        """The main thread did not come back.

        Args:
            reason: what was waited for in vain.
            request_id: of the failure, should it come to that.
            generation: the one that the main thread hangs in.

        Returns:
            The effect that replaces the process, or the failure with which it ends instead of being replaced once more.
        """
        hangs = self.total
        if hangs.count < REPLACEMENTS_MAX:
            return ReplaceProcess(reason, Hangs(hangs.count + 1, hangs.step))
        times = f"{reason}, {hangs.count + 1} times in a row and never beyond step {hangs.step}: the program hangs there"
        return Failure(
            request_id=request_id, generation=generation, step=hangs.step, error=times, traceback=""
        )
