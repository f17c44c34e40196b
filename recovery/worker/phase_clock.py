"""What the main thread does and since when: noted by it at each change, read by the connection's thread at each heartbeat."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

from recovery import clock
from recovery.core.phases import Phase, PhaseReport
from recovery.worker import processor_wait
from recovery.worker.batch_times import BatchTimes

_STACK_FROM_MS = 4_000
"""What takes less is not judged (core/policy/hang_limits.py: 5 s), so nobody asks where it is."""
_STACK_FRAMES, _STACK_CHARACTERS = 40, 4_000
_PAUSED_MS = 1_000
"""A tick that comes later than the one before by this, beyond what it waited, shows that the process was stopped."""


_COUNTS_FROM_MS = {Phase.SAVE: 100, Phase.EVALUATION: 1_000}
"""What takes less is no measure of one that writes (a look whether a save is due), or of one that goes through a data set."""
_DEBUGGERS = ("bdb.py", "pdb.py")
_MAY_EVALUATE = (Phase.COMPUTE, Phase.OWN_CODE, Phase.STEP)

_Batch = TypeVar("_Batch")


class PhaseClock:
    """Of one process, over all its generations."""

    def __init__(self) -> None:
        """Nothing trains."""
        self._at = (Phase.START, clock.monotonic_ms(), 0)
        """What it does, since when, and how long the process had been stopped in all by then. Replaced as a whole: the other thread reads it at any moment."""
        self._longest_ms: dict[Phase, int] = {}
        self._is_first, self._fresh_start_ms = True, 0
        """The generation's first step is not done: it is part of its start. And the longest start that loaded nothing."""
        self._entry = object()
        """Of the generation: a loop of an earlier one may be left late."""
        self._loads = self._in_loop = False
        self._tells_compute: bool | None = None
        """Has an optimizer's step ended each step of the loop? None: it has made none yet. False: not each, so that what is behind one may be in another's place."""
        self._evaluated_at: object = None
        """What of `_at` a look has seen a model in evaluation mode in: all of that is the evaluation."""
        self._paused_ms, self._ticked_ms = 0, 0
        self._thread_id = self._native_id = 0
        self.times = BatchTimes()
        self._looked_at, self._begun_starved_ms, self._starved_ms = self._at, 0, 0
        """What the main thread did at the newest tick, and how long it had waited for a processor in all at the first tick of that, and at the newest."""
        self.models: Callable[[], Iterable[Any]] = _no_model
        """What is trained here: objects of which `training` says their mode, as torch's modules and MindSpore's cells have it. Set by an integration, for
        one generation."""
        self._trained = set[int]()
        """By their ids, those that were seen in training mode in this generation: a teacher, which never is, shows no evaluation."""
        self.collectives: Callable[[], int] = _none
        """How many collectives this rank has begun in its world. Set by an integration, for one generation."""

    @property
    def phase(self) -> Phase:
        """What the main thread does, by its own notes."""
        return self._at[0]

    # --- the main thread -----------------------------------------------------------------------------------------------

    def begin(self, *, loads: bool) -> PhaseClock:
        """A generation begins. What the one before has left unfinished is no measure of anything. Gives itself.

        Args:
            loads: a checkpoint. A start that loads none is no measure of one that does, and is told by itself: it may have filled caches.
        """
        self.models, self.collectives = _no_model, _none
        self._trained.clear()
        self._thread_id, self._native_id = threading.get_ident(), threading.get_native_id()
        self._is_first, self._loads, self._in_loop, self._tells_compute = True, loads, False, None
        self._entry = object()
        self.times.begin()
        self._at = (Phase.START, clock.monotonic_ms(), self._paused_ms)
        return self

    def batches(self, drawn: Iterable[_Batch]) -> Iterator[_Batch]:
        """Draw: until a batch is there it is data, then what is done with it counts."""
        self.enter(Phase.FIRST_BATCH)
        begun_ms, is_in_start = clock.monotonic_ms(), self._is_first
        for batch in drawn:
            if is_in_start:
                self._note(Phase.FIRST_BATCH, clock.monotonic_ms() - begun_ms)
                is_in_start = False
            self.enter(Phase.COMPUTE)
            self.times.drawn()
            yield batch
            self.enter(Phase.DATA)
            self.times.wants()
        self.times.passed()

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """A loop whose end is known: what comes behind it is no step that takes long."""
        self.enter_loop()
        entry = self._entry
        try:
            yield
        except BaseException:
            # What was left unfinished is no measure of anything.
            if entry is self._entry:
                self._leave()
            raise
        if entry is self._entry:
            self.end()

    def enter_loop(self) -> None:
        """Its last step will be told by `end`."""
        self._in_loop = True

    def end(self) -> None:
        """The last step is done: what is left takes as long as it takes."""
        if not self._is_first and self._at[0] is not Phase.END:
            self._move(Phase.END)
        self._leave()

    def _leave(self) -> None:
        self._is_first = self._in_loop = False
        if self._at[0] is not Phase.END:
            self._at = (Phase.END, clock.monotonic_ms(), self._paused_ms)
        self.forget()

    def forget(self) -> None:
        """Look at no model any more: what an integration has set holds one."""
        self.models = _no_model

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """The main thread does this, and then goes on with what it did before."""
        before = self.enter(phase)
        try:
            yield
        finally:
            # A start ends with its first step.
            self.enter(Phase.STEP if before is Phase.START else before)

    def enter(self, phase: Phase) -> Phase:
        """The main thread goes on with this. Gives what it did before."""
        before = self._at[0]
        if before is Phase.COMPUTE and phase is Phase.OWN_CODE:
            self._tells_compute = False
        if not self._is_first and before is not Phase.END:
            self._move(phase)
        return before

    def computed(self) -> None:
        """An optimizer's step has ended, or that of one of several: what follows is the script's own."""
        if self._at[0] is Phase.COMPUTE:
            self._tells_compute = self._tells_compute is not False
            self._move(Phase.OWN_CODE)

    def stepped(self) -> None:
        """A step is applied: the first one of a generation ends its start, any other one a phase that is a whole step."""
        if self._is_first:
            # Whatever trains has trained just now.
            self._sees_evaluation()
        if self._is_first or self._at[0] is Phase.STEP:
            self._is_first = False
            self._move(Phase.STEP if self._in_loop else Phase.END)

    def _move(self, phase: Phase) -> None:
        left, since_ms, paused_ms = was = self._at
        now_ms = clock.monotonic_ms()
        self._at = (phase, now_ms, self._paused_ms)
        left = Phase.EVALUATION if was is self._evaluated_at else self._told(left)
        lasted_ms = now_ms - since_ms - (self._paused_ms - paused_ms)
        # A whole step ends with the next one's begin; what a save ends is a part of one.
        is_part = was[0] is left is Phase.STEP and phase is not Phase.STEP
        if left is Phase.START and not self._loads:
            self._fresh_start_ms = max(lasted_ms, self._fresh_start_ms)
        elif not is_part:
            self._note(left, lasted_ms)

    def _note(self, phase: Phase, lasted_ms: int) -> None:
        if lasted_ms < _COUNTS_FROM_MS.get(phase, 0):
            return
        if lasted_ms > self._longest_ms.get(phase, -1):
            self._longest_ms[phase] = lasted_ms

    # --- the connection's thread ---------------------------------------------------------------------------------------

    def tick(self, waited_s: float) -> None:
        """The connection's thread runs, having meant to wait for so long: it finds out where the whole process was stopped, or its main thread had no processor."""
        now_ms, at = clock.monotonic_ms(), self._at
        starved_ms = processor_wait.waited_ms(self._native_id)
        # Where this thread had none either, what the main one has waited is no pause as well.
        late_ms = now_ms - self._ticked_ms - int(waited_s * 1_000) - max(0, starved_ms - self._starved_ms)
        if self._ticked_ms and late_ms >= _PAUSED_MS:
            self._paused_ms += late_ms
        self._ticked_ms, self._starved_ms = now_ms, starved_ms
        if at is not self._looked_at:
            self._looked_at, self._begun_starved_ms = at, starved_ms

    def report(self) -> PhaseReport:
        """What the main thread does now."""
        phase, since_ms, paused_ms = at = self._at
        starved_ms = self._starved_ms - self._begun_starved_ms if at is self._looked_at else 0
        lasting_ms = max(0, clock.monotonic_ms() - since_ms - (self._paused_ms - paused_ms) - starved_ms)
        if phase in _MAY_EVALUATE and (at is self._evaluated_at or self._sees_evaluation()):
            # Until the main thread goes on: a model that trains again has been evaluated just now.
            phase, self._evaluated_at = Phase.EVALUATION, at
        stack, is_debugged = self._stack() if lasting_ms >= _STACK_FROM_MS else ("", False)
        return PhaseReport(
            # A person at work takes as long as that takes.
            phase=Phase.END if is_debugged else self._told(phase),
            lasting_ms=lasting_ms,
            collectives=self.collectives(),
            longest_ms=self._longest_ms.copy(),
            fresh_start_ms=self._fresh_start_ms,
            stack=stack,
            pace=self.times.pace(self._native_id),
        )

    def _told(self, phase: Phase) -> Phase:
        """Where not every step says when its optimizer's step ends, what comes behind that is in there, too."""
        return Phase.STEP if phase is Phase.COMPUTE and not self._tells_compute else phase

    def _sees_evaluation(self) -> bool:
        """Is a model that was seen in training mode in evaluation mode now?"""
        try:
            trains = {id(model): bool(getattr(model, "training", True)) for model in self.models()}
        except Exception:  # noqa: BLE001 - it looks at the program's objects, which may be half made or gone; without it there would be no heartbeat
            return False
        self._trained.update(model for model, is_training in trains.items() if is_training)
        return any(not is_training and model in self._trained for model, is_training in trains.items())

    def _stack(self) -> tuple[str, bool]:
        """Where the main thread is, innermost frame last; without source lines, which would have to be read from a disk. And is it in a debugger?"""
        frame: FrameType | None = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the one way to see another thread's
        lines, is_debugged = list[str](), False
        while frame is not None and len(lines) < _STACK_FRAMES:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
            is_debugged |= frame.f_code.co_filename.endswith(_DEBUGGERS)
            frame = frame.f_back
        return "\n".join(reversed(lines))[-_STACK_CHARACTERS:], is_debugged


def _no_model() -> Iterable[Any]:
    return ()


def _none() -> int:
    return 0
