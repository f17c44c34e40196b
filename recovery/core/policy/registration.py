"""May this process register now? `judge` decides, by the facts that the scheduler has gathered.

A few rules come first, in order: they are about the process and the job. Then a table says what becomes of the id (registration_table.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

import msgspec

from recovery.core.causes import Cause
from recovery.core.messages import PROTOCOL_VERSION, Register
from recovery.core.policy.registration_table import BY_SITUATION, Held, Situation, Slots, Token, Verdict
from recovery.core.records import JobRecord, JobState, NodeRecord, NodeState
from recovery.core.rules import Rules


class Admit(msgspec.Struct, frozen=True):
    """A new incarnation begins."""

    standby: bool = False
    """It holds no rank."""


class Resume(msgspec.Struct, frozen=True):
    """The current incarnation goes on."""


class Refuse(msgspec.Struct, frozen=True):
    """Not now, or never (`retry_after_ms` None)."""

    code: str
    reason: str
    retry_after_ms: int | None = None
    holder_connected: bool = False


class JobOver(msgspec.Struct, frozen=True):
    """It is sent how the job has ended, or its run, and begins none: only a scheduler that starts does, and this one ends in a moment."""

    event: str = ""
    """What the event of its refusal says; empty: it was in, so there is none."""
    is_run: bool = False
    """Its run has finished, and the job goes on."""


class RankGone(msgspec.Struct, frozen=True):
    """It is sent that its rank was handed over."""

    reason: str


class StoreLost(msgspec.Struct, frozen=True):
    """It trains a job that this scheduler does not know: its store was lost, and the scheduler ends before it plans anything."""

    found: str


Decision = Union[Admit, Resume, Refuse, JobOver, RankGone, StoreLost]


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """An id that must be lost before a process is let in, and has not been lost."""

    node_id: str
    is_connected: bool
    silent_ms: int
    ask_again_ms: int
    """When the applicant may ask again."""
    fills: bool = False
    """It was not started for that one's rank: all slots are taken, and that one has any of them."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known around one registration."""

    register: Register
    rules: Rules
    job: JobRecord
    situation: Situation
    archived_jobs: frozenset[str] = frozenset()
    """Jobs whose state a person has archived in this path: a worker that knows one of them may start over."""
    knows_nothing: bool = False
    """The job has never had a plan: it may have taken another job's place."""
    known: NodeRecord | None = None
    """The node that has this id; None: nobody had it."""
    misfit: str | None = None
    """Why an id like the slot's cannot be ranked beside the others; None: it can."""
    silent_ms: int = 0
    """How long the id has been silent."""
    suspect_left_ms: int = 0
    """What is left of the grace or lease after which a living holder would count as lost."""
    window_left_ms: int = 0
    """What is left of the rejoin window."""
    replaced: Replaced | None = None
    """The holder of the rank that it was started for; or of one of the slots, where all are taken."""


def judge(facts: Facts) -> Decision:
    """Decide on one registration: the first rule that applies, else the row of the table.

    Source: design of the re-registration policy, docs/design/registration.md; the 30 s rule is MindSpore's.
    """
    ruled = (decided for rule in RULES if (decided := rule(facts)) is not None)
    return next(ruled, None) or _DECISIONS[BY_SITUATION[facts.situation]](facts)


# --- what comes before the table ----------------------------------------------------------------------------------------


def _set_up_otherwise(facts: Facts) -> Refuse | None:
    """No member of this job, whatever its id and whatever the run."""
    register, rules = facts.register, facts.rules
    if register.protocol != PROTOCOL_VERSION:
        return Refuse(
            "PROTOCOL_VERSION",
            f"this process speaks protocol {register.protocol}, the scheduler {PROTOCOL_VERSION}. "
            "Install the same release everywhere.",
        )
    for field, its, ours in (
        ("MS_WORKER_NUM", register.worker_count, rules.worker_count),
        ("MS_SERVER_NUM", register.server_count, rules.server_count),
        ("MS_ENABLE_RECOVERY", int(register.recovery_enabled), int(rules.recovery_enabled)),
    ):
        if its != ours:
            return Refuse(
                "JOB_MISMATCH",
                f'{field}={its} in node "{register.node_id}", but {ours} in the scheduler: it must be the same in every process.',
            )
    return None


def _trains_another_job(facts: Facts) -> Refuse | StoreLost | None:
    """A scheduler that knows nothing has lost its store, unless it is to be rebuilt (MS_REBUILD_STORE): then it lets everybody in."""
    register, rules = facts.register, facts.rules
    may_be_lost = facts.knows_nothing and rules.recovery_enabled
    if register.job in (facts.job.job, *facts.archived_jobs):
        return None
    # An earlier release names no job, and a generation all the same: a scheduler that never planned gave it none.
    if not register.job and not (register.generation > 0 and may_be_lost and not facts.archived_jobs):
        return None
    if not may_be_lost:
        return Refuse(
            "JOB_MISMATCH",
            f'node "{register.node_id}" trains job {register.job}, this scheduler is of job {facts.job.job}. '
            "End that process, or give it the address of its own scheduler.",
        )
    if rules.rebuild_store:
        return None
    job = register.job or "of another scheduler"
    return StoreLost(f"node {register.node_id} trains job {job}, generation {register.generation}")


def _comes_too_late(facts: Facts) -> JobOver | None:
    """A run begun now would wait for those that were sent the end."""
    if facts.job.state not in (JobState.FINISHED, JobState.FAILED):
        return None
    was_in = bool(facts.register.generation) or facts.register.token is not None
    if was_in or facts.situation.held not in (Held.UNKNOWN, Held.LEFT):
        return JobOver()
    return JobOver(
        f"JOB_ENDED: it came when the job had ended ({facts.job.reason}); the next scheduler takes it in"
    )


def _has_another_role(facts: Facts) -> Refuse | None:
    register, known = facts.register, facts.known
    if known is None or known.role is register.role:
        return None
    return Refuse(
        "NODE_ID_INVALID",
        f'MS_NODE_ID="{register.node_id}" is the id of a {known.role.value}, this is a {register.role.value}. '
        "Give each process its own id.",
    )


def _cannot_be_ranked(facts: Facts) -> Refuse | None:
    """A rank that is given is given, and a standby needs none."""
    register, slots = facts.register, facts.situation.slots
    has_rank = facts.known is not None and facts.known.rank is not None
    asks_for_no_slot = bool(register.standby or register.replaces) and slots is Slots.NONE
    if has_rank or asks_for_no_slot or slots in (Slots.STANDBY, Slots.HELD) or not facts.misfit:
        return None
    return Refuse("NODE_ID_INVALID", f"{facts.misfit}. Give each process its own id.")


def _missed_its_end(facts: Facts) -> JobOver | RankGone | None:
    """Its connection closed before it heard that its run has finished, or that its rank was handed over."""
    known = facts.known
    if known is None or facts.situation.token is not Token.SAME:
        return None
    if known.cause is Cause.RUN_FINISHED:
        return JobOver(is_run=True)
    is_handed_over = known.state is NodeState.LEFT and known.cause is Cause.RANK_HANDED_OVER
    return RankGone(known.reason[:1024]) if is_handed_over else None


RULES: tuple[Callable[[Facts], Union[Decision, None]], ...] = (
    _set_up_otherwise,
    _trains_another_job,
    _comes_too_late,
    _has_another_role,
    _cannot_be_ranked,
    _missed_its_end,
)
"""In order of precedence."""


# --- what the table says ------------------------------------------------------------------------------------------------


def _node_alive(facts: Facts) -> Refuse:
    """Its holder is connected, or nobody is and the holder may still come back: two things for the reader to do."""
    rules, node, heard = facts.rules, facts.register.node_id, f"heard {facts.silent_ms / 1000:.1f} s ago"
    if facts.situation.held is Held.LIVE:
        return Refuse(
            "NODE_ALIVE",
            f'node "{node}" is held by a process that is connected and was {heard}. '
            "Give each process its own MS_NODE_ID, or end that process.",
            facts.suspect_left_ms,
            holder_connected=True,
        )
    return Refuse(
        "NODE_ALIVE",
        f'the process that holds node "{node}" is not connected; it is believed alive, and may come back, for another '
        f"{facts.suspect_left_ms / 1000:.1f} s (MS_RECONNECT_GRACE={rules.reconnect_grace_ms / 1000:g}; "
        f"MS_NODE_TIMEOUT={rules.lease_ms / 1000:g} after a restart of the scheduler). "
        "A process that takes its place keeps this MS_NODE_ID.",
        facts.suspect_left_ms,
    )


def _slot_held(facts: Facts) -> Refuse:
    """The holder of the rank that it was started for may still be alive."""
    replaced = facts.replaced
    assert replaced is not None, "a slot is held by somebody"
    how = "connected" if replaced.is_connected else "not connected, and may come back"
    why = f'comes for the rank of "{replaced.node_id}"'
    if replaced.fills:
        why = f'finds all places taken, one of them by "{replaced.node_id}"'
    return Refuse(
        "NODE_ALIVE",
        f'node "{facts.register.node_id}" {why}, whose process is {how}: heard {replaced.silent_ms / 1000:.1f} s ago.',
        replaced.ask_again_ms,
        holder_connected=replaced.is_connected,
    )


def _in_its_window(facts: Facts) -> Refuse:
    return Refuse(
        "REJOIN_WINDOW",
        f'node "{facts.register.node_id}" was last heard {facts.silent_ms / 1000:.1f} s ago and may return in '
        f"{facts.window_left_ms / 1000:.1f} s (MS_REJOIN_WINDOW={facts.rules.rejoin_window_ms / 1000:g}).",
        facts.window_left_ms,
    )


def _world_full(facts: Facts) -> Refuse:
    rules, count = facts.rules, facts.rules.worker_count
    why = (
        f"is extra: all {count} slots are taken (MS_WORKER_NUM={count}). "
        "Start fewer workers, or use the MS_NODE_ID of the one that is to be replaced."
    )
    if facts.register.standby:
        why = (
            "would wait as a standby (MS_STANDBY=1), and all places for one are taken: the scheduler has "
            f"MS_STANDBY_NUM={rules.standby_count}. Start fewer standbys, or set it to their number."
        )
        if not rules.recovery_enabled:
            why = "would wait as a standby (MS_STANDBY=1), and without recovery (MS_ENABLE_RECOVERY=0) a lost rank ends the job."
    return Refuse("WORLD_FULL", f'node "{facts.register.node_id}" {why}')


_DECISIONS: dict[Verdict, Callable[[Facts], Decision]] = {
    Verdict.ADMIT: lambda facts: Admit(),
    Verdict.ADMIT_STANDBY: lambda facts: Admit(standby=True),
    Verdict.RESUME: lambda facts: Resume(),
    Verdict.NODE_ALIVE: _node_alive,
    Verdict.SLOT_HELD: _slot_held,
    Verdict.REJOIN_WINDOW: _in_its_window,
    Verdict.WORLD_FULL: _world_full,
    Verdict.UNKNOWN_TOKEN: lambda facts: Refuse(
        "UNKNOWN_TOKEN",
        f'node "{facts.register.node_id}" brings a token that this scheduler\'s store never gave. It registers again, without it.',
        0,
    ),
    Verdict.FENCED: lambda facts: Refuse(
        "FENCED",
        f'node "{facts.register.node_id}" has a newer incarnation, or its slot is taken. This process may not go on and ends itself.',
    ),
}
