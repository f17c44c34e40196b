"""What a process keeps of its training from one entry of the training function to the next (`MS_ROLLBACK=live`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from recovery.core.ids import Rank
from recovery.core.message_fields import RANKS_MAX
from recovery.core.messages import LiveState, Rollback
from recovery.core.worker import stimuli as s
from recovery.errors import CheckpointStateError
from recovery.training.live import GivesMemory, KeptObjects, LiveMemory, StepPosition
from recovery.training.planned_checkpoint import reject
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")
_Made = TypeVar("_Made")


class LiveRollback:
    """One per process. Off, each call of it costs next to nothing."""

    def __init__(
        self,
        service: WorkerService,
        *,
        why_not: str = "",
        keeps: bool = True,
        of_frameworks: Sequence[KeptObjects] = (),
    ) -> None:
        """Nothing is kept yet.

        Args:
            service: for what is reported; it knows whether live rollback is asked for.
            why_not: why this process cannot take part in it; empty: it can.
            keeps: whether what the script has made outlives an entry. The classes of one that is run again are others then.
            of_frameworks: what each does with what is kept; one that is imported later may be added.
        """
        self._keeps = keeps
        self._service = service
        self.is_on = service.live_rollback and service.recovery_enabled
        self._cannot = why_not
        self.not_live = ""
        """Why this training cannot go on from a survivor's memory, as it was found when its state was built; empty: it can."""
        self._kept: dict[str, object] = {}
        self._used: set[str] = set()
        """Names of what this entry was given or has made."""
        self._of_frameworks = of_frameworks
        self._memory: LiveMemory | None = None
        self._whole: LiveState | None = None
        """The state of the newest boundary that this process has passed, or taken and seen compared."""
        self._plan: Rollback | None = None
        self.awaits_state = False
        """The plan names a rank's memory, and nothing was taken from it yet."""
        self._unsure = ""
        """Not empty: what the memory holds is not known to be what all ranks hold, and why."""

    # --- an entry ------------------------------------------------------------------------------------------------------

    def enter(self, plan: Rollback) -> None:
        """The training function is entered. What no plan goes back to any more is let go before anything is built."""
        self._plan = plan
        self._used.clear()
        self.awaits_state = plan.live_rank is not None
        # What comes from a checkpoint is in no memory yet.
        if not self.awaits_state or not plan.live_structure:
            self._let_go()

    def _let_go(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory, self._whole = None, None
        self._let_go_of_kept()

    def _let_go_of_kept(self) -> None:
        self._kept.clear()
        for framework in self._of_frameworks:
            framework.let_go()

    def keep(self, name: str, make: Callable[[], _Made]) -> _Made:
        """As `Session.keep`."""
        # Behind the begin of the steps a rank that has not kept it makes it with the others: so all do.
        if name in self._kept and (name in self._used or self.awaits_state):
            kept: _Made = self._kept[name]  # type: ignore[assignment]  # made by the same call, of an earlier entry too
            if name not in self._used:
                for framework in self._of_frameworks:
                    framework.enter_world(kept)
                self._used.add(name)
            return kept
        made = make()
        self._used.add(name)
        if self.is_on and self._keeps:
            self._kept[name] = made
        return made

    def prepare(self, state: object, *, steps_are_ours: bool) -> None:
        """The state is built, and nothing is loaded into it yet.

        Args:
            state: of this entry.
            steps_are_ours: `Session.steps` counts its steps; else nobody says when one ends.
        """
        self.not_live = ""
        if not self.is_on:
            return
        self.not_live = self._cannot or ("" if steps_are_ours else "its loop is not session.steps()")
        self.not_live = self.not_live or _why_not(state)
        if self.not_live:
            _logger.warning(
                "event=not_live a death costs the steps since the last checkpoint: %s", self.not_live
            )
            self._let_go()
        elif self._memory is None:
            assert isinstance(state, GivesMemory), "else there was a reason"
            self._memory = state.live_memory()

    def take(self, state: object) -> None:
        """Take the state of the plan from the rank that has it, or give it, as all ranks do, and wait until all have taken the same.

        Where the plan names this rank's checkpoint, that lies in `state` already.

        Raises:
            GenerationInterrupted: it cannot be taken, or a rank has taken another one; another plan follows.
        """
        plan = self._plan
        assert plan is not None, "the training function was entered"
        assert plan.live_rank is not None, "the plan says whose memory"
        if self._memory is None:
            self._reject(plan, self.not_live or "live rollback is off in this process (MS_ROLLBACK)")
        gives_checkpoint = bool(plan.path)
        if gives_checkpoint:
            self._memory.loaded(plan.step, rank=int(plan.rank))
        is_whole = self._whole is not None and self._whole.step == plan.step and not self._unsure
        if not (gives_checkpoint or is_whole):
            self._unsure = f"it was taking the state of step {plan.step} from rank {plan.live_rank}"
        try:
            content = self._memory.transfer(
                state,
                source=int(plan.live_rank),
                rank=int(plan.rank),
                shapes=plan.live_structure,
                at=StepPosition(plan.step, plan.epoch, plan.step_in_epoch),
                replicas=plan.live_replicas,
            )
        except CheckpointStateError as error:
            self._reject(plan, str(error))
        _logger.info(
            "event=restored rank=%d generation=%d step=%d from the %s of rank %d",
            plan.rank,
            plan.generation,
            plan.step,
            "memory" if plan.live_structure else "checkpoint",
            plan.live_rank,
        )
        self.awaits_state = False
        self._service.post(s.StateRestored(plan.generation, content=content, not_live=self.not_live))
        self._service.training_control.await_agreed(int(plan.generation))
        self._note(plan.step, plan.epoch, plan.step_in_epoch)

    def loaded(self) -> None:
        """The state of the plan was loaded from a checkpoint, or is that of the beginning."""
        plan = self._plan
        if self._memory is None or plan is None:
            return
        self._memory.begin(plan.step)
        self._note(plan.step, plan.epoch, plan.step_in_epoch)
        self._memory.next_step(plan.step)

    # --- steps ---------------------------------------------------------------------------------------------------------

    def boundary(self, step: int, epoch: int, step_in_epoch: int) -> None:
        """A step is applied: the state is that of its end."""
        if self._memory is not None:
            self._memory.boundary(step)
            self._note(step, epoch, step_in_epoch)

    def before_callbacks(self, step: int, *, may_change: bool) -> None:
        """Behind a boundary callbacks follow; until `behind_callbacks` nobody goes on from here, since what they have left undone is not done again.

        Args:
            step: of the boundary.
            may_change: they may change what the state holds.
        """
        if self._memory is not None:
            self._unsure = f"callbacks of step {step} had not ended"
            if may_change:
                self._memory.before_callbacks()

    def behind_callbacks(self, step: int, *, may_change: bool) -> None:
        """They have ended. What they may have changed is taken once more."""
        if self._memory is not None:
            self._unsure = ""
            if may_change:
                self._memory.begin(step)

    def next_step(self, step: int) -> None:
        """Key the random generators for what comes behind a step."""
        if self._memory is not None:
            self._memory.next_step(step)

    def _note(self, step: int, epoch: int, step_in_epoch: int) -> None:
        plan = self._plan
        assert plan is not None, "the training function was entered"
        self._unsure = ""
        self._whole = LiveState(
            run=plan.run,
            generation=plan.generation,
            step=step,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            structure="",
        )

    # --- the end of an entry -------------------------------------------------------------------------------------------

    def left(self) -> tuple[LiveState | None, str]:
        """The training function was left: what can be given to others now, or None and why not."""
        if not self.is_on:
            return None, ""
        self._leave_world()
        if self._memory is None or self._whole is None:
            return None, self.not_live or "no state was built"
        structure, why_not = self._memory.offer()
        why_not = why_not or self._unsure
        if why_not:
            return None, why_not
        replicas = tuple(Rank(rank) for rank in self._memory.replicas)
        if len(replicas) > RANKS_MAX:
            return None, f"{len(replicas)} ranks hold the same part, and {RANKS_MAX} can be named"
        return msgspec.structs.replace(self._whole, structure=structure, replicas=replicas), ""

    def _leave_world(self) -> None:
        """What belongs to the world that is over cannot be kept; where no state was built, nobody knows whether something is spread over the ranks."""
        why_not = ""
        if self._kept and (self._memory is None or self._memory.replicas):
            why_not = "what is spread over the ranks knows the world that is over"
        for framework in self._of_frameworks:
            why_not = why_not or framework.leave_world(self._kept)
        if why_not:
            _logger.info(
                "event=kept_let_go %s: %s, and is built again", ", ".join(sorted(self._kept)), why_not
            )
            self._let_go_of_kept()

    def _reject(self, plan: Rollback, reason: str) -> NoReturn:
        reject(self._service, plan, f"live:{plan.live_rank}", reason)


def _why_not(state: object) -> str:
    if not isinstance(state, GivesMemory):
        return f"a {type(state).__name__} cannot be given to other ranks"
    return "; ".join(state.why_not_live())
