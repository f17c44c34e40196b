"""May a process register: every row of the table, and the rules that come before it, without a scheduler."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, ResumeToken
from recovery.core.messages import PROTOCOL_VERSION, Register, Role
from recovery.core.policy.registration import (
    RULES,
    Admit,
    Decision,
    Facts,
    JobOver,
    RankGone,
    Refuse,
    Resume,
    StoreLost,
    judge,
)
from recovery.core.policy.registration_table import ROWS, Held, Situation, Slots, Token, Window
from recovery.core.records import JobState, NodeRecord, NodeState
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import ENDED, new_job
from tests.core.desk import registration

_RULES = Rules(worker_count=2)
_NEW = Situation(Held.UNKNOWN, Token.NONE, Window.OVER, Slots.FREE)


def _facts(register: Register | None = None, /, **fields: object) -> Facts:
    """A fresh process of this job that there is a slot for, but for these fields."""
    register = register or registration(node_id=NodeId("worker_3"), job="job")
    plain = Facts(register=register, rules=_RULES, job=new_job("job", _RULES), situation=_NEW)
    return msgspec.structs.replace(plain, **fields)


def _known(**fields: object) -> NodeRecord:
    """The row of worker_3, which is here, but for these fields."""
    plain = NodeRecord(
        node_id=NodeId("worker_3"),
        role=Role.WORKER,
        rank=None,
        incarnation=Incarnation(1),
        state=NodeState.LIVE,
        token_digest="",
        admission_request="",
        host="",
        pid=1,
    )
    return msgspec.structs.replace(plain, **fields)


def test_every_situation_has_exactly_one_row() -> None:
    for held, token, window, slots in itertools.product(Held, Token, Window, Slots):
        situation = Situation(held, token, window, slots)
        assert sum(row.matches(situation) for row in ROWS) == 1, situation


@pytest.mark.parametrize(
    ("held", "token", "window", "slots", "expected"),
    [
        (Held.UNKNOWN, Token.FOREIGN, Window.OVER, Slots.FREE, "UNKNOWN_TOKEN"),
        (Held.UNKNOWN, Token.NONE, Window.OVER, Slots.FREE, Admit()),
        (Held.UNKNOWN, Token.NONE, Window.OVER, Slots.STANDBY, Admit(standby=True)),
        (Held.UNKNOWN, Token.NONE, Window.OVER, Slots.NONE, "WORLD_FULL"),
        (Held.LIVE, Token.SAME, Window.OVER, Slots.FREE, Resume()),
        (Held.LIVE, Token.NONE, Window.OVER, Slots.FREE, "NODE_ALIVE"),
        (Held.SUSPECT, Token.SAME, Window.OVER, Slots.FREE, Resume()),
        (Held.SUSPECT, Token.FOREIGN, Window.OVER, Slots.FREE, "NODE_ALIVE"),
        (Held.LOST, Token.SAME, Window.OPEN, Slots.FREE, Resume()),
        (Held.LOST, Token.NONE, Window.OPEN, Slots.FREE, "REJOIN_WINDOW"),
        (Held.LOST, Token.SAME, Window.OVER, Slots.FREE, Resume()),
        (Held.LOST, Token.NONE, Window.OVER, Slots.FREE, Admit()),
        (Held.LEFT, Token.SAME, Window.OVER, Slots.FREE, "FENCED"),
        (Held.LEFT, Token.NONE, Window.OPEN, Slots.FREE, Admit()),
        (Held.REPLACED, Token.SAME, Window.OVER, Slots.NONE, "FENCED"),
        (Held.REPLACED, Token.NONE, Window.OPEN, Slots.FREE, "REJOIN_WINDOW"),
        (Held.REPLACED, Token.NONE, Window.OVER, Slots.NONE, "WORLD_FULL"),
        *(
            (held, Token.EARLIER, Window.OVER, Slots.FREE, "FENCED")
            for held in Held
            if held is not Held.UNKNOWN
        ),
    ],
)
def test_the_policy_of_the_design_row_by_row(
    held: Held, token: Token, window: Window, slots: Slots, expected: object
) -> None:
    decision = judge(
        _facts(
            situation=Situation(held, token, window, slots),
            silent_ms=12_400,
            suspect_left_ms=500,
            window_left_ms=17_600,
        )
    )
    assert (decision.code if isinstance(decision, Refuse) else decision) == expected
    if expected == "REJOIN_WINDOW":
        assert isinstance(decision, Refuse)
        assert decision.retry_after_ms == 17_600
        assert "12.4 s ago and may return in 17.6 s (MS_REJOIN_WINDOW=30)" in decision.reason


# --- what comes before the table ----------------------------------------------------------------------------------------

_SAME = Situation(Held.LEFT, Token.SAME, Window.OVER, Slots.FREE)
_ENDED = msgspec.structs.replace(new_job("job", _RULES), state=JobState.FINISHED, reason="all are done")
_ANOTHER = {"job": "another", "node_id": NodeId("worker_3")}
_MISFIT = {"misfit": "it does not fit"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (_facts(registration(protocol=PROTOCOL_VERSION + 1, job="another")), "PROTOCOL_VERSION"),
        (_facts(registration(worker_count=3, job="another"), job=_ENDED), "JOB_MISMATCH"),
        (_facts(registration(**_ANOTHER)), "JOB_MISMATCH"),
        (_facts(registration(**_ANOTHER), job=_ENDED), "JOB_MISMATCH"),
        (_facts(registration(**_ANOTHER), archived_jobs=frozenset({"another"})), Admit()),
        (
            _facts(registration(**_ANOTHER), knows_nothing=True),
            StoreLost("node worker_3 trains job another, generation 0"),
        ),
        (
            _facts(registration(generation=Generation(4)), knows_nothing=True),
            StoreLost("node worker_0 trains job of another scheduler, generation 4"),
        ),
        (
            _facts(
                registration(generation=Generation(4)), knows_nothing=True, archived_jobs=frozenset({"old"})
            ),
            Admit(),
        ),
        (
            _facts(
                registration(**_ANOTHER), knows_nothing=True, rules=Rules(worker_count=2, rebuild_store=True)
            ),
            Admit(),
        ),
        (
            _facts(job=_ENDED),
            JobOver(
                "JOB_ENDED: it came when the job had ended (all are done); the next scheduler takes it in"
            ),
        ),
        (_facts(registration(generation=Generation(1)), job=_ENDED), JobOver()),
        (_facts(registration(token=ResumeToken("t")), job=_ENDED), JobOver()),
        (
            _facts(
                job=_ENDED,
                known=_known(),
                situation=Situation(Held.LIVE, Token.NONE, Window.OVER, Slots.FREE),
            ),
            JobOver(),
        ),
        (_facts(known=_known(role=Role.SERVER), **_MISFIT), "NODE_ID_INVALID"),
        (_facts(**_MISFIT), "NODE_ID_INVALID"),
        (_facts(known=_known(rank=Rank(0)), **_MISFIT), Admit()),
        (
            _facts(situation=Situation(Held.UNKNOWN, Token.NONE, Window.OVER, Slots.STANDBY), **_MISFIT),
            Admit(standby=True),
        ),
        (
            _facts(
                registration(standby=True),
                situation=Situation(Held.UNKNOWN, Token.NONE, Window.OVER, Slots.NONE),
                **_MISFIT,
            ),
            "WORLD_FULL",
        ),
        (
            _facts(known=_known(state=NodeState.LEFT, cause=Cause.RUN_FINISHED), situation=_SAME),
            JobOver(is_run=True),
        ),
        (
            _facts(
                known=_known(state=NodeState.LEFT, cause=Cause.RANK_HANDED_OVER, reason="drained"),
                situation=_SAME,
            ),
            RankGone("drained"),
        ),
        (_facts(known=_known(state=NodeState.LEFT), situation=_SAME), "FENCED"),
    ],
)
def test_a_rule_decides_before_the_table(facts: Facts, expected: Decision | str) -> None:
    decision = judge(facts)
    assert (decision.code if isinstance(decision, Refuse) else decision) == expected


@st.composite
def _any_facts(draw: st.DrawFn) -> Facts:
    held = draw(st.sampled_from(Held))
    slots = draw(st.sampled_from((Slots.FREE, Slots.STANDBY, Slots.NONE)))
    state = NodeState.LOST if held in (Held.LOST, Held.REPLACED) else NodeState.LEFT
    cause = draw(st.sampled_from((Cause.OTHER, Cause.RUN_FINISHED, Cause.RANK_HANDED_OVER)))
    job, generation = draw(st.sampled_from(("", "job", "another"))), Generation(draw(st.integers(0, 1)))
    return _facts(
        registration(job=job, generation=generation),
        situation=Situation(held, draw(st.sampled_from(Token)), Window.OVER, slots),
        job=msgspec.structs.replace(new_job("job", _RULES), state=draw(st.sampled_from(JobState))),
        known=None if held is Held.UNKNOWN else _known(state=state, cause=cause),
        misfit=draw(st.sampled_from((None, "it does not fit"))),
        knows_nothing=draw(st.booleans()),
    )


@given(_any_facts())
def test_every_facts_have_one_decision_and_nobody_is_let_in_against_a_rule(facts: Facts) -> None:
    decision = judge(facts)
    ruled = [decided for rule in RULES if (decided := rule(facts)) is not None]
    assert not ruled or decision == ruled[0]
    if isinstance(decision, (Admit, Resume)):
        assert not ruled
        held, token = facts.situation.held, facts.situation.token
        assert facts.job.state not in ENDED, "a job that is over takes nobody in"
        assert token is not Token.EARLIER, "an older incarnation is never let in again"
        assert not (held in (Held.LIVE, Held.SUSPECT) and token is not Token.SAME)
