"""Where the two threads of a worker meet: the main thread that trains and the thread that holds the connection.

The main thread waits here for plans and addresses and looks here, once a step, whether its generation goes on.
The connection's thread puts down what the scheduler said and wakes the main thread wherever it waits.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable

import msgspec

from recovery import clock
from recovery.core.messages import Rollback
from recovery.core.worker.requests import STOPPED
from recovery.errors import GenerationInterrupted, exit_code_of
from recovery.worker.stop_step import StopPoint

_logger = logging.getLogger("recovery.worker")
_FENCED = "FENCED"


class Verdict(msgspec.Struct, frozen=True):
    """The process must end. An empty code is success."""

    code: str
    reason: str

    @property
    def exit_code(self) -> int:
        """Of the process. Whose rank was handed over ends as SIGTERM would have ended it."""
        if self.code == STOPPED:
            return 128 + signal.SIGTERM
        return exit_code_of(self.code) if self.code else 0


class TrainingControl:
    """One per process."""

    def __init__(self, *, pause_limit_ms: int, on_pause: Callable[[int], None]) -> None:
        """Start closed.

        Args:
            pause_limit_ms: after a pause of the whole process longer than this its place must be confirmed before it steps on.
            on_pause: called with the length of such a pause, in milliseconds; it lets the machine ask.
        """
        self._changed = threading.Condition()
        """Guards what is below, and is notified when any of it changes."""
        self._pause_limit_ms, self._on_pause = pause_limit_ms, on_pause
        self._plan: Rollback | None = None
        """The newest plan; None: there was none yet."""
        self._rendezvous: dict[int, str] = {}
        """Where rank 0 listens, by generation: the plan's and later ones."""
        self._interrupted = 0
        """The newest generation that is over; 0: none."""
        self._reason = ""
        """Why it is over, for people."""
        self._agreed = 0
        """The newest generation whose ranks have all taken the same state from a survivor's memory; 0: none."""
        self._verdict: Verdict | None = None
        """How the process ends; None: nobody has decided that it does."""
        self._confirmed = True
        """False after a pause, until the scheduler has confirmed that this incarnation is still the one."""
        self._wakers: list[Callable[[], None]] = []
        """Called when the generation ends: they wake a main thread that sits in a collective."""
        self.committed_step = 0
        """The newest step that all ranks hold, as far as is known in this generation; 0: none."""
        self.previous_durable_step = self.durable_step = 0
        """The two newest steps that lie on all ranks' disks, likewise; the older one says which files may go."""
        self.disk_committed_ms: int | None = None
        """When the newest was heard of, on the monotonic clock; None: not since the plan of this generation."""
        self._pinned: tuple[int, ...] = ()
        self.pinned_in_memory: tuple[int, ...] = ()
        """Older steps in memory whose files stay."""
        self._pinned_stored: tuple[int, ...] = ()
        """Older steps whose files stay: what lies on other hosts, and what is being copied there."""
        self.stop_point = StopPoint()
        self.end_reason = ""
        """Why training ends where `stop_point` says, for people."""
        self.drain_unsupported_reason = ""
        """Not empty: why the main thread stops at no step that is asked for. Set by the main thread, for the rest of the process."""
        self.leave_as_asked: Callable[[], None] = lambda: None
        """Called, in the connection's thread, when a signal that was held back is to reach the main thread."""
        self.tick_ms = clock.monotonic_ms()
        """When the connection's thread ran last, on the monotonic clock."""

    # --- the main thread's side ----------------------------------------------------------------------------------------

    def next_plan(self, after: int) -> Rollback | Verdict:
        """Wait for a plan of a generation later than `after`, or for the end of the process."""
        with self._changed:
            while True:
                if self._verdict is not None:
                    return self._verdict
                if self._plan is not None and self._plan.generation > after:
                    return self._plan
                self._changed.wait()

    def is_planned(self, within_s: float) -> bool:
        """Wait for the first plan, or for the end of the process; so long at most."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._verdict is not None or self._plan is not None, within_s
            )

    def verdict(self) -> Verdict:
        """Wait for the end of the process."""
        with self._changed:
            while self._verdict is None:
                self._changed.wait()
            return self._verdict

    def verdict_if_any(self) -> Verdict | None:
        """The end of the process, if it is decided."""
        with self._changed:
            return self._verdict

    @property
    def job_is_over(self) -> bool:
        """Has the job finished, every rank of it?"""
        verdict = self.verdict_if_any()
        return verdict is not None and not verdict.code

    def await_interrupt(self, generation: int) -> None:
        """Wait until the scheduler has ended the generation too: a rank that comes back before that would find it running.

        Where that word was lost on the way, the plan of a later generation says the same.
        """
        with self._changed:
            while not self.is_interrupted(generation) and (
                self._plan is None or self._plan.generation <= generation
            ):
                self._changed.wait()

    def await_rendezvous(self, generation: int) -> str:
        """Wait for the address where rank 0 listens.

        Raises:
            GenerationInterrupted: the generation ended first.
        """
        with self._changed:
            while generation not in self._rendezvous:
                self._check(generation)
                self._changed.wait()
            return self._rendezvous[generation]

    def await_agreed(self, generation: int) -> None:
        """Wait until the scheduler has compared what all ranks took from a survivor's memory.

        Raises:
            GenerationInterrupted: the generation ended first; so it does where one has taken another state than the others.
        """
        with self._changed:
            while self._agreed < generation:
                self._check(generation)
                self._changed.wait()

    def await_end(self, generation: int) -> Verdict:
        """Wait, done, until the job ends.

        Raises:
            GenerationInterrupted: another rank fell before it was done: everybody rolls back.
        """
        with self._changed:
            while True:
                if self._verdict is not None and not self._verdict.code:
                    return self._verdict
                self._check(generation)
                self._changed.wait()

    def check(self, generation: int) -> None:
        """Look whether the generation goes on. Called once a step, so the common path takes no lock.

        Raises:
            GenerationInterrupted: it is over, or the process must end.
        """
        paused_ms = clock.monotonic_ms() - self.tick_ms
        if self._interrupted >= generation or self._verdict is not None:
            self._check(generation)
        if paused_ms > self._pause_limit_ms or not self._confirmed:
            self._await_confirmation(generation, paused_ms)

    def await_go_on(self, generation: int, step: int) -> None:
        """Wait at a step where the main thread was asked to stop, until the wait was given up or training ends there.

        Raises:
            GenerationInterrupted: it is over: the next one begins at this step, unless somebody died.
        """
        with self._changed:
            while self.stop_point.end != step and not self.stop_point.passes(step):
                self._check(generation)
                self._changed.wait()

    def still_owns_rank(self) -> bool:
        """Ask, from a thread that saves: may this process still change what lies under the names of its rank?

        The end of a generation is no reason against it: what was saved of it may be where everybody goes back to.
        """
        paused_ms = clock.monotonic_ms() - self.tick_ms
        if paused_ms > self._pause_limit_ms:
            self.note_pause(paused_ms)
        with self._changed:
            while not self._confirmed and self._verdict is None:
                self._changed.wait()
            return self._confirmed and not self._is_fenced

    @property
    def _is_fenced(self) -> bool:
        return self._verdict is not None and self._verdict.code == _FENCED

    def is_interrupted(self, generation: int) -> bool:
        """Is the generation over?"""
        return self._interrupted >= generation or self._verdict is not None

    def _check(self, generation: int) -> None:
        if self._verdict is not None:
            raise GenerationInterrupted(generation, self._verdict.reason)
        if self._interrupted >= generation:
            raise GenerationInterrupted(generation, self._reason)

    def _await_confirmation(self, generation: int, paused_ms: int) -> None:
        """The process was paused for a good part of its lease: a newer incarnation may have its place by now."""
        self.note_pause(paused_ms)
        with self._changed:
            while not self._confirmed:
                self._check(generation)
                self._changed.wait()

    def on_interrupt(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, in the connection's thread, when the generation ends."""
        with self._changed:
            self._wakers.append(wake)

    def forget_wakers(self) -> None:
        """The generation was left: nothing of it needs waking any more."""
        with self._changed:
            self._wakers.clear()

    # --- the connection's side -----------------------------------------------------------------------------------------

    def open(self, plan: Rollback) -> None:
        """Let the main thread into a generation."""
        with self._changed:
            self._plan = plan
            self._rendezvous = {
                key: value for key, value in self._rendezvous.items() if key >= plan.generation
            }
            self.previous_durable_step = self.durable_step = self.committed_step = 0
            self.note_committed(
                plan.committed_step,
                self._pinned,
                durable_step=plan.durable_step,
                pinned_in_memory=self.pinned_in_memory,
            )
            self.disk_committed_ms = None
            self.stop_point.begin(plan.generation, plan.step, plan.ends_at)
            self.end_reason = plan.ends_because
            self._changed.notify_all()

    def note_committed(
        self,
        step: int,
        pinned: tuple[int, ...] = (),
        *,
        durable_step: int | None = None,
        pinned_in_memory: tuple[int, ...] = (),
    ) -> None:
        """All ranks hold this step. It is sent again after a reconnect, so a step may come twice.

        Args:
            step: the newest that all ranks hold.
            pinned: older ones whose files stay.
            durable_step: the newest that lies on all ranks' disks; None: the same.
            pinned_in_memory: as `pinned`, of what is in memory.
        """
        self._pinned, self.pinned_in_memory = pinned, pinned_in_memory
        self.committed_step = max(self.committed_step, step)
        durable_step = step if durable_step is None else durable_step
        if durable_step > self.durable_step:
            self.previous_durable_step, self.durable_step = self.durable_step, durable_step
            self.disk_committed_ms = clock.monotonic_ms()

    def spare_stored(self, steps: tuple[int, ...]) -> None:
        """Files of these steps stay, whatever else is pinned: object storage has them, or is sent them."""
        self._pinned_stored = steps

    @property
    def pinned_steps(self) -> tuple[int, ...]:
        """Older steps whose files stay."""
        return (*self._pinned, *self._pinned_stored)

    def begin_steps(self, generation: int) -> None:
        """All ranks have taken the same state."""
        with self._changed:
            self._agreed = max(self._agreed, generation)
            self._changed.notify_all()

    def open_rendezvous(self, generation: int, address: str) -> None:
        """Rank 0 listens at this address."""
        with self._changed:
            self._rendezvous[generation] = address
            self._changed.notify_all()

    def interrupt(self, generation: int, reason: str) -> None:
        """End a generation and wake the main thread wherever it waits."""
        with self._changed:
            self._interrupted, self._reason = max(self._interrupted, generation), reason
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            wakers = tuple(self._wakers)
        for wake in wakers:
            try:
                wake()
            except Exception:
                _logger.exception("event=waker_failed")

    def tick(self) -> None:
        """The connection's thread runs. Notices a pause of the whole process, and lets a main thread that waits look for signals."""
        paused_ms = clock.monotonic_ms() - self.tick_ms
        if paused_ms > self._pause_limit_ms:
            self.note_pause(paused_ms)
        self.tick_ms = clock.monotonic_ms()
        # A signal that comes between Python's look for signals and the system's wait is not seen before the wait ends.
        with self._changed:
            self._changed.notify_all()

    def note_pause(self, paused_ms: int) -> None:
        """No step and no save until the scheduler has confirmed that this incarnation is still the one. Both threads may notice."""
        with self._changed:
            first, self._confirmed = self._confirmed, False
        if first:
            self._on_pause(paused_ms)

    def stop_at(self, generation: int, step: int, *, ends_training: bool = False) -> tuple[int, bool]:
        """Have the main thread stop at the end of this step, instead of one that was named before, as `StopPoint.stop_at`.

        Returns:
            The step that it has passed, and whether it will stop.
        """
        with self._changed:
            passed, stops = self.stop_point.stop_at(generation, step, ends_training=ends_training)
            self._changed.notify_all()
        return passed, stops

    def end_at(self, generation: int, step: int, reason: str) -> int:
        """Have the main thread's loop end at the end of this step, as `StopPoint.end_at`."""
        with self._changed:
            self.end_reason = reason
            passed = self.stop_point.end_at(generation, step)
            self._changed.notify_all()
        return passed

    def let_go(self) -> None:
        """The main thread stops nowhere."""
        with self._changed:
            self.stop_point.forget()
            self._changed.notify_all()

    def confirm(self) -> None:
        """The scheduler still knows this incarnation."""
        with self._changed:
            self.tick_ms = clock.monotonic_ms()
            self._confirmed = True
            self._changed.notify_all()

    def finish(self, verdict: Verdict) -> None:
        """The process must end; the first verdict stands. A thread that sits in a collective is woken, unless all went well."""
        with self._changed:
            if self._verdict is None:
                self._verdict = verdict
            self._changed.notify_all()
        if verdict.code:
            self._wake()
