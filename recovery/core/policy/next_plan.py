"""All ranks are ready: which state does everybody go to, or why does the job end?

`RULES` is the whole decision in its order of precedence: the first rule that gives something decides, and one always does. A rule reads the facts
and nothing else. The scheduler gathers them and writes what is decided (`scheduler/generations/change.py`); `recovery plan` asks the same rules.

Generations in a row may break at the same step, with nobody lost, and the next one would break there again, and so on for ever. Ranks that do not
take the same number of steps are the usual cause: one is done, and the others wait for it in a collective until that gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Union

import msgspec

from recovery.core.held import HeldCheckpoint, LiveState
from recovery.core.ids import Rank
from recovery.core.messages import JobOutcome
from recovery.core.policy import backoff, live, rollback
from recovery.core.records import GenerationRecord

SAME_ENDS_MAX = 4
"""How often in a row a data plane may break at the same step. What broke by bad luck comes through the first time."""
NETWORK_MS = 600_000
"""Where no step was made and no rank was done, the network may be away: how long it is waited for besides."""


class CrashLoop(NamedTuple):
    """How generations in a row have ended."""

    plan: int
    """The step that they began at."""
    step: int
    """The step at which the data plane broke, as the first rank said that reported it."""
    times: int
    first_ms: int
    """When the first of them ended."""
    last_ms: int
    """When the last one did."""
    by_program: bool
    """Has each of them made a step, or had a rank that was done? Then the network was there."""
    done: str
    """Which ranks were done when the last of them broke, and at which step; empty: none."""
    waits: bool = False
    """Are all ranks ready, and is the next generation waited for?"""

    def is_hopeless(self, now_ms: int) -> bool:
        """Would the next generation end as these did?"""
        if self.times < SAME_ENDS_MAX:
            return False
        return self.by_program or now_ms - self.first_ms >= NETWORK_MS

    @property
    def next_ms(self) -> int:
        """When the next generation may begin: later and later, where the network may be away."""
        return self.last_ms + (0 if self.by_program else backoff.next_generation_ms(self.times))

    @property
    def sentence(self) -> str:
        """For the event log."""
        done = f" while {self.done} waited behind the end" if self.done else ""
        return f"{self.times} generations in a row, from step {self.plan}, have broken at step {self.step}{done}, and no process was lost"


def crash_loop_after(
    before: CrashLoop | None, *, plan: int, is_live: bool, step: int, done: str, now_ms: int
) -> CrashLoop:
    """One more generation has ended, which began at `plan` and broke at `step`. `before`: how those before it ended; None: otherwise, or none has.

    One that began in a rank's memory, `is_live`, went on from where they broke: it belongs to them, and so does the next from their checkpoint.
    """
    by_program = step > plan or bool(done)
    if before is None or before.step != step or not (is_live or before.plan == plan):
        return CrashLoop(plan, step, 1, now_ms, now_ms, by_program, done)
    by_program = before.by_program and by_program
    return before._replace(
        times=before.times + 1, last_ms=now_ms, by_program=by_program, done=done, waits=False
    )


class Facts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What the decision is made of. The first six are what the checkpoint index knows."""

    world_size: int
    """Number of ranks, at least 1."""
    held: Mapping[int, Mapping[Rank, HeldCheckpoint]]
    """By step and rank: its usable checkpoint of this run, or what other nodes can give it."""
    of_one: Mapping[int, tuple[Rank, HeldCheckpoint]]
    """By committed step, newest first: the lowest rank that still holds it as a file of ours. A framework's own folder cannot be given."""
    given_up: Mapping[int, Mapping[Rank, rollback.Unusable]]
    """Of each committed step: whose files are not usable any more, and why."""
    ever_committed: bool
    """Whether any step of this run was ever held by all ranks. If none was (a death between the ranks' very first saves), step 0 is the newest
    state that all ranks had in common, and nothing committed is lost."""
    allow_restart_from_zero: bool
    """What to do when committed steps existed and none is common any more."""
    live_rollback: bool = False
    """May one rank give its state to others (MS_ROLLBACK=live)?"""
    memories: Mapping[Rank, LiveState] = msgspec.field(default_factory=dict)
    """What is whole in the ranks' memories, of this run."""
    generations: Sequence[GenerationRecord] = ()
    """Plans of this run: what belongs to a suffix that one of them rolled back is no candidate."""
    refused: frozenset[int] = frozenset()
    """Steps whose state could not be taken from another rank, or turned out not to be the same on all."""
    crash_loop: CrashLoop | None = None
    """How generations in a row have ended; None: the last one's cause is known."""
    because: str = ""
    """Why the last generation ended."""
    now_ms: int = 0

    @cached_property
    def common_step(self) -> int:
        """The newest step that every rank can go to with its own checkpoint; 0: there is none.

        Where steps were committed and ranks differ in each that is left, training makes them differ: corruption begins at one rank, behind a sound step.
        """
        return self.differing_steps[-1] if self.are_apart else self.alike_step

    @cached_property
    def alike_step(self) -> int:
        """The newest step that is common; 0: there is none."""
        return max(rollback.common_steps(self.held, self.world_size, self.given_up), default=0)

    @cached_property
    def differing_steps(self) -> tuple[int, ...]:
        """Steps, oldest first, that all ranks hold at one place and that are not common, since what must be alike in them is not."""
        return tuple(
            step
            for step, own in sorted(self.held.items())
            if step not in self.given_up
            and rollback.is_at_one_place(own, self.world_size)
            and rollback.replicas_differ(own)
        )

    @cached_property
    def are_apart(self) -> bool:
        """Do the ranks differ in every step that is left, though steps were committed?"""
        return self.ever_committed and bool(self.differing_steps) and not self.alike_step

    @property
    def not_alike(self) -> str:
        """Which newer steps the ranks differ in, or that they do in this one, as the end of a sentence; empty: they do in none."""
        if self.are_apart:
            return "; they differ in it, as in every step that is left, which is taken for training's doing"
        newer = [str(step) for step in self.differing_steps if step > self.common_step]
        return (
            f"; they hold step {', '.join(newer[-rollback.STEPS_NAMED :])} as well, and differ in it"
            if newer
            else ""
        )

    @cached_property
    def in_memory(self) -> tuple[live.LiveSource, ...]:
        """The ranks whose memories hold a whole state that is newer than that step; none: there is no such state."""
        if not self.live_rollback:
            return ()
        return live.choose(
            self.memories,
            self.generations,
            world_size=self.world_size,
            newer_than=self.common_step,
            refused=self.refused,
        )

    @cached_property
    def newest_of_one(self) -> int:
        """The newest committed step that one rank can give to all, and that is newer than any other state; 0: there is none."""
        memory = self.memories[self.in_memory[0].rank].step if self.in_memory else 0
        newer = (step for step in self.of_one if step > max(memory, self.common_step))
        return next((step for step in newer if self.live_rollback and step not in self.refused), 0)

    @property
    def table(self) -> str:
        """Which rank holds what, for people."""
        return "; ".join(
            f"rank {rank}: {', '.join(str(step) for step in sorted(self.held) if rank in self.held[step]) or 'none'}"
            for rank in range(self.world_size)
        )

    @cached_property
    def why_from_zero(self) -> str:
        """Why training may start at step 0 where there is no state to go to; empty: it may not."""
        if not self.ever_committed and not any(self.held.values()):
            return "no rank has a checkpoint of this run yet"
        if not self.ever_committed:
            return f"no step has ever been held by all ranks ({self.table}){self.not_alike}"
        if self.allow_restart_from_zero:
            return f"no step is held by all ranks ({self.table}) and MS_ALLOW_RESTART_FROM_ZERO=1"
        return ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks go to one state."""

    reason: str
    at: HeldCheckpoint | LiveState | None = None
    """One rank's part of the state; None: step 0, with freshly initialised weights."""
    files: tuple[HeldCheckpoint, ...] = ()
    """By rank, where each has its own."""
    sources: tuple[live.LiveSource, ...] = ()
    """The ranks that give it to all others; none: each has its own."""

    @property
    def step(self) -> int:
        """The step that it is the state of."""
        return self.at.step if self.at is not None else 0


class End(msgspec.Struct, frozen=True):
    """The job cannot go on."""

    outcome: JobOutcome
    reason: str
    advice: str
    """What a person can do."""


def _nothing_in_common(facts: Facts) -> End | None:
    """Committed steps existed, and no state is left that all could go to: nothing is guessed towards step 0."""
    if facts.common_step or facts.in_memory or facts.newest_of_one or facts.why_from_zero:
        return None
    return End(
        JobOutcome.NO_COMMON_CHECKPOINT,
        f"no step is held by all {facts.world_size} ranks ({facts.table})",
        "Nothing was deleted. Bring the missing files back, or set MS_ALLOW_RESTART_FROM_ZERO=1 to start again at step 0.",
    )


def _ends_alike(facts: Facts) -> End | None:
    """The next generation would end as those before it did, whatever state it began in."""
    loop = facts.crash_loop
    if loop is None or not loop.is_hopeless(facts.now_ms):
        return None
    return End(
        JobOutcome.JOB_FAILED,
        f"{loop.sentence}: {facts.because}",
        "The next one would end there too. Let all ranks take the same number of steps and the same collectives in each.",
    )


def _checkpoint_of_one(facts: Facts) -> Plan | None:
    """All ranks held a step and some have lost it: one that has not gives it to all."""
    step = facts.newest_of_one
    if not step:
        return None
    rank, held = facts.of_one[step]
    reason = live.given_by(rank, step, facts.given_up[step])
    return Plan(reason=reason, at=held, sources=(live.LiveSource(rank, structure=""),))


def _memory(facts: Facts) -> Plan | None:
    """A survivor holds the newest state in its memory, or several hold its parts."""
    if not facts.in_memory:
        return None
    state = facts.memories[facts.in_memory[0].rank]
    return Plan(reason=live.held_by(facts.in_memory, state.step), at=state, sources=facts.in_memory)


def _own_checkpoints(facts: Facts) -> Plan | None:
    """Each rank has the newest common step."""
    if not facts.common_step:
        return None
    files = tuple(facts.held[facts.common_step][Rank(rank)] for rank in range(facts.world_size))
    reason = f"every rank holds step {facts.common_step}{facts.not_alike}"
    return Plan(reason=reason, at=files[0], files=files)


def _from_zero(facts: Facts) -> Plan | None:
    """Nothing that was promised is lost by it, or it is allowed. Said loudly."""
    return Plan(reason=facts.why_from_zero) if facts.why_from_zero else None


RULES: tuple[Callable[[Facts], Union[Plan, End, None]], ...] = (
    _nothing_in_common,
    _ends_alike,
    _checkpoint_of_one,
    _memory,
    _own_checkpoints,
    _from_zero,
)


def next_plan(facts: Facts) -> Union[Plan, End]:
    """Decide. Source: docs/design/checkpoints.md "The plan", docs/design/live_rollback.md."""
    return next(decided for rule in RULES if (decided := rule(facts)) is not None)
