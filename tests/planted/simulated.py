"""Bugs in places, standbys and proofs of death that the simulation is to catch, whatever the unit tests say of them."""

from __future__ import annotations

from tests.planted.bug import Bug

_STANDBYS = "tests/simulation/test_standbys.py"
_DISTURBED = f"{_STANDBYS}::test_standbys_keep_every_promise_while_everybody_around_them_dies"
_BY_HAND, _FRESH = f"{_DISTURBED}[by hand]", f"{_DISTURBED}[fresh ids]"
_AT_ONCE = f"{_STANDBYS}::test_a_job_with_a_ready_standby_goes_on_at_once_after_a_death"

SIMULATED = (
    Bug(
        "the rank of a holder that is away for a moment is offered",
        "I21",
        "core/policy/takeover.py",
        "",
        "_HERE = (NodeState.LIVE, NodeState.SUSPECT)\n_GONE = (NodeState.LOST, NodeState.LEFT)",
        "_HERE = (NodeState.LIVE,)\n_GONE = (NodeState.LOST, NodeState.LEFT, NodeState.SUSPECT)",
        (_BY_HAND,),
    ),
    Bug(
        "the slot moves although the answer lacks the step that all hold",
        "I21",
        "core/scheduler/membership/takeover.py",
        "answered",
        "not state.vacancies.offers[slot].is_last",
        "state.vacancies.offers[slot].is_last",
        (_BY_HAND,),
    ),
    Bug(
        "the old holder is resumed beside the one that took its rank over",
        "I21",
        "core/scheduler/node.py",
        "Node.held",
        "Held.LOST if has_slot or (not self._slot and not self.record.generation) else Held.REPLACED",
        "Held.LOST",
        (_BY_HAND,),
    ),
    Bug(
        "the lost one's row keeps the rank that a standby has",
        "I22",
        "core/scheduler/membership/takeover.py",
        "_move",
        "[holder.record, holder.slot_record, standby.record, standby.slot_record, state.incarnation_record(standby), event]",
        "[holder.slot_record, standby.record, standby.slot_record, state.incarnation_record(standby), event]",
        (_BY_HAND,),
    ),
    Bug(
        "the lost one's place is not written with the rank",
        "I22",
        "core/scheduler/membership/takeover.py",
        "_move",
        "[holder.record, holder.slot_record, standby.record, standby.slot_record, state.incarnation_record(standby), event]",
        "[holder.record, standby.record, standby.slot_record, state.incarnation_record(standby), event]",
        (_BY_HAND,),
    ),
    Bug(
        "a standby is counted as a rank that is ready",
        "I24",
        "core/scheduler/node.py",
        "Slots.count",
        "has_slot and record.state is NodeState.LIVE and said_ready",
        "record.state is NodeState.LIVE and said_ready",
        (_AT_ONCE,),
    ),
    Bug(
        "a store that is built again waits for standbys that are gone",
        "I24",
        "core/scheduler/membership/lost_scheduler_store.py",
        "_may_still_say",
        "node.record.state is NodeState.LIVE and node.ready is None",
        "node.ready is None",
        (_BY_HAND,),
    ),
    Bug(
        "an offer that nobody answers never lapses",
        "I14",
        "core/scheduler/membership/takeover.py",
        "on_offer_due",
        "now_ms < offer.until_ms",
        "now_ms >= 0",
        (
            "tests/core/test_takeover.py::test_offer_that_is_not_answered_lapses_and_a_late_answer_leads_to_another_offer",
        ),
    ),
    Bug(
        "a successor finds no place while the rank of the one that it replaces is free",
        "I25",
        "core/scheduler/membership/slot_choice.py",
        "_may_stand_by",
        "slots.vacant if _comes_for_a_rank(state, node, register) else 0",
        "0",
        (
            "tests/core/test_slots_left.py::test_process_of_the_host_of_a_vacant_rank_is_let_in_beside_standbys_that_have_declined",
        ),
    ),
    Bug(
        "who waits is not told that its id is free",
        "I25",
        "core/scheduler/membership/liveness.py",
        "_learn",
        "state.waiting.note_free(node.record.node_id, node.slot)",
        "",
        (
            "tests/core/test_waiting.py::test_a_death_that_is_proven_behind_the_loss_lets_in_who_waits_for_the_id",
        ),
    ),
    Bug(
        "who was started in the place of a lost one takes nothing when nobody can read its newest file",
        "I14",
        "core/scheduler/membership/takeover.py",
        "_last_resort",
        "(has_another or _is_in_place(state, holder, standby))",
        "not _is_in_place(state, holder, standby)",
        ("tests/core/test_takeover.py::test_successor_takes_the_rank_when_nobody_can_read_its_newest_file",),
    ),
    Bug(
        "who reads an older step of the rank that it was started for takes another, and leaves that one to nobody",
        "I14",
        "core/scheduler/membership/takeover.py",
        "_comes_for",
        "decline.newest != 0 and standby.record.host == holder.record.host",
        "False",
        (
            "tests/core/test_takeover_own_rank.py::test_who_reads_an_older_step_of_its_own_rank_takes_no_other_which_would_leave_that_one_to_nobody",
            "tests/core/test_takeover_own_rank.py::test_who_has_not_said_in_time_what_it_reads_of_its_own_rank_is_asked_for_no_other",
        ),
    ),
    Bug(
        "a rank whose newest file nobody can read waits for a process that has another rank",
        "I14",
        "core/scheduler/membership/takeover.py",
        "_last_resort",
        "has_another or _is_in_place(state, holder, standby)",
        "_is_in_place(state, holder, standby)",
        ("tests/core/test_takeover.py::test_anybody_on_its_host_takes_the_rank_of_who_is_not_started_again",),
    ),
    Bug(
        "only the next process of a place is known to have another rank",
        "I14",
        "core/scheduler/membership/takeover.py",
        "_last_resort",
        "is_in_slot(lost, node.place)",
        "False",
        (
            "tests/core/test_takeover.py::test_anybody_on_its_host_takes_the_rank_whose_place_has_had_several_processes",
        ),
    ),
)
