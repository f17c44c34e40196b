"""Bugs in standbys: who is offered which rank, what an answer must hold, how the seat changes hands."""

from __future__ import annotations

from tests.planted.bug import Bug

_TAKEOVER = "tests/core/test_takeover.py"
_GROWTH = "tests/core/test_takeover_growth.py"
_PLACES = "tests/core/test_takeover_places.py"
_RESTARTS = "tests/core/test_takeover_restarts.py"
_POLICY = "tests/core/test_takeover_policy.py"
_WORKER = "tests/core/test_standby_worker.py"
_STARTS_AGAIN = "tests/core/test_starts_again.py"
_REBUILD = "tests/core/test_rebuild_standbys.py"
_AGAIN = "tests/core/test_asked_again.py"
_LEFT = "tests/core/test_seats_left.py"
_BESIDE = "tests/core/test_places.py"

STANDBYS = (
    Bug(
        "a process is refused for good while who has its place may be gone",
        "I14",
        "core/scheduler/places.py",
        "        return Place(Seats.HELD, held_by=holder, fills=True)",
        "        return Place(Seats.NONE)",
        (f"{_BESIDE}::test_nobody_is_refused_for_good_while_a_standby_may_be_gone",),
    ),
    Bug(
        "nobody of the host of a vacant rank is let in, and the others cannot say that its files are gone",
        "I14",
        "core/scheduler/places.py",
        "    return any(one.record.host == host for one in everybody if _is_vacant_of(one))",
        "    return False",
        (
            f"{_BESIDE}::test_the_only_one_on_the_host_of_a_vacant_rank_is_let_in_beside_standbys_of_other_hosts",
        ),
    ),
    Bug(
        "who comes for one lost rank is given another, and nobody comes for its own",
        "I25",
        "core/policy/takeover.py",
        'one.comes_for in ("", wanted.seat)',
        "bool(wanted.seat)",
        (f"{_PLACES}::test_who_comes_for_a_lost_rank_is_not_given_another_that_is_lost_too",),
    ),
    Bug(
        "a standby is offered the rank of who may come back",
        "I1",
        "core/policy/takeover.py",
        "_seat(_HERE,                _ANY_JOB,                 (True, False),   Vacancy.NOT)",
        "_seat(_HERE,                _ANY_JOB,                 (True, False),   Vacancy.OFFER)",
        (f"{_POLICY}::test_seat_of_who_may_be_alive_is_never_given_away",),
    ),
    Bug(
        "a holder that came back loses its rank to an offer that was open",
        "I1",
        "core/scheduler/takeover.py",
        "        if is_open is not Vacancy.OFFER:",
        "        if state.job_ended:",
        (f"{_TAKEOVER}::test_holder_that_comes_back_while_its_rank_is_offered_keeps_it",),
    ),
    Bug(
        "a survivor that starts its program again loses its rank to a standby",
        "I21",
        "core/scheduler/takeover.py",
        "        if not node.keeps_rank(now_ms, state.rules.lease_ms)\n",
        "",
        (f"{_STARTS_AGAIN}::test_its_rank_is_offered_to_nobody_and_it_comes_back_by_its_token",),
    ),
    Bug(
        "a survivor that ended while it was to start again is waited for",
        "I25",
        "core/scheduler/liveness.py",
        "    node.proven_dead, node.comes_back = True, False\n",
        "    node.proven_dead = True\n",
        (f"{_STARTS_AGAIN}::test_its_proven_end_gives_the_rank_away_at_once",),
    ),
    Bug(
        "a standby takes a rank whose newest common step it cannot read",
        "I9",
        "core/policy/takeover.py",
        "frozenset({Shown.ANOTHER_FILE, Shown.NO_FILE}),       takes=False)",
        "frozenset({Shown.ANOTHER_FILE, Shown.NO_FILE}),       takes=True)",
        (
            f"{_TAKEOVER}::test_standby_without_the_newest_common_step_does_not_get_the_rank_and_the_next_is_asked",
        ),
    ),
    Bug(
        "any file of the step is taken for the rank's own",
        "I8",
        "core/policy/takeover.py",
        "shown = Shown.THAT_FILE if is_that else Shown.ANOTHER_FILE",
        "shown = Shown.THAT_FILE if by_step else Shown.ANOTHER_FILE",
        (f"{_POLICY}::test_answer_must_hold_the_very_file_of_the_step_that_all_ranks_hold",),
    ),
    Bug(
        "the lost one keeps its rank beside the one that took it over",
        "I1",
        "core/scheduler/takeover.py",
        "    holder.record = msgspec.structs.replace(holder.record, rank=None)\n",
        "",
        (f"{_TAKEOVER}::test_standby_is_offered_the_lost_rank_and_takes_it_within_its_window",),
    ),
    Bug(
        "who took over a rank is not written",
        "I5",
        "core/scheduler/takeover.py",
        "        standby.seat_record,\n",
        "",
        (f"{_RESTARTS}::test_scheduler_that_is_restarted_after_the_seat_moved_knows_who_has_it",),
    ),
    Bug(
        "one standby is asked for two ranks at once",
        "I1",
        "core/scheduler/takeover.py",
        "            del standbys[standby.record.node_id]\n            effects += _offer(",
        "            effects += _offer(",
        (f"{_TAKEOVER}::test_standby_that_finds_two_ranks_lost_is_asked_for_one",),
    ),
    Bug(
        "a standby that cannot take a rank is asked again and again",
        "I14",
        "core/scheduler/takeover.py",
        "    state.declined.setdefault(standby, {})[seat] = reason\n",
        "    state.declined.setdefault(standby, {})\n",
        (
            f"{_TAKEOVER}::test_standby_without_the_newest_common_step_does_not_get_the_rank_and_the_next_is_asked",
            f"{_TAKEOVER}::test_who_declined_is_not_asked_again_until_it_registers_again",
        ),
    ),
    Bug(
        "a standby that declines again and again fills the event log",
        "I14",
        "core/scheduler/takeover.py",
        "    reported.add((seat, reason))\n",
        "",
        (
            f"{_GROWTH}::test_a_rank_that_one_standby_declines_again_and_again_is_one_line",
            f"{_GROWTH}::test_a_standby_whose_connection_breaks_again_and_again_is_one_line",
        ),
    ),
    Bug(
        "why a standby declines is reported once in the life of a job",
        "I14",
        "core/scheduler/generations.py",
        "    state.reported_declines.clear()\n",
        "",
        (f"{_GROWTH}::test_the_next_loss_of_the_rank_is_reported_again",),
    ),
    Bug(
        "an offer is waited for, for ever",
        "I14",
        "core/scheduler/takeover.py",
        "    if now_ms < offer.until_ms:\n",
        "    if now_ms <= offer.until_ms:\n",
        (f"{_TAKEOVER}::test_offer_that_is_not_answered_lapses_and_a_late_answer_leads_to_another_offer",),
    ),
    Bug(
        "the loss of a standby ends the generation",
        "I14",
        "core/scheduler/liveness.py",
        "if (record.role is m.Role.WORKER and not node.is_standby) or not state.rules.recovery_enabled:",
        "if record.role is m.Role.WORKER or not state.rules.recovery_enabled:",
        (f"{_TAKEOVER}::test_nothing_counts_a_standby_and_its_loss_ends_no_generation",),
    ),
    Bug(
        "what a process holds under its own name counts as the rank's files",
        "I9",
        "core/scheduler/checkpoint_messages.py",
        "if node.is_standby or (node.took_over and not ready.generation):",
        "if node.is_standby:",
        (f"{_PLACES}::test_what_a_process_holds_under_its_own_name_is_not_taken_for_the_ranks_files",),
    ),
    Bug(
        "a fresh process in another's place is not sent where the rank's files lie",
        "I14",
        "core/scheduler/registration.py",
        "if node.took_over and node.record.rank is not None and not its_generation:",
        "if node.took_over and node.record.rank is None and not its_generation:",
        (f"{_PLACES}::test_fresh_process_in_the_place_of_another_name_is_sent_where_the_files_lie",),
    ),
    Bug(
        "a successor is let in while the one that it replaces is alive",
        "I1",
        "core/scheduler/places.py",
        "if holder is not None and not state.builds_again:",
        "if holder is not None and state.builds_again:",
        (f"{_PLACES}::test_process_started_for_a_lost_rank_waits_until_it_is_lost_and_needs_no_place",),
    ),
    Bug(
        "more standbys than MS_STANDBY_NUM are let in",
        "I17",
        "core/scheduler/places.py",
        "return seats.standbys - is_one < places",
        "return seats.standbys - is_one <= places",
        (f"{_PLACES}::test_standby_without_a_place_is_refused_by_name",),
    ),
    Bug(
        "a launcher that gives up a worker ends a job that a standby could save",
        "I14",
        "core/scheduler/liveness.py",
        "if node.record.role is m.Role.WORKER and state.seats[m.Role.WORKER].standbys:",
        "if node.record.role is m.Role.SERVER and state.seats[m.Role.WORKER].standbys:",
        (f"{_RESTARTS}::test_worker_that_is_given_up_is_replaced_where_a_standby_can_take_its_rank",),
    ),
    Bug(
        "a standby does not keep where the files of its rank lie",
        "I9",
        "core/worker/standby.py",
        "return [KeepPlaces(plan.rank)] if offered == plan.rank else []",
        "return [KeepPlaces(plan.rank)] if offered != plan.rank else []",
        (f"{_WORKER}::test_with_the_plan_of_the_rank_it_keeps_where_the_files_lie",),
    ),
    Bug(
        "a search of a standby's own directories overtakes its answer",
        "I9",
        "core/worker/standby.py",
        "return rank == self._offered",
        "return rank in (None, self._offered)",
        (f"{_WORKER}::test_what_it_holds_under_its_own_name_is_not_sent_after_the_answer",),
    ),
    Bug(
        "a rebuilt store gives a rank to the one that was replaced",
        "I19",
        "core/policy/rebuild.py",
        "if past.generation == newest[past.rank]}",
        "if past.generation <= newest[past.rank]}",
        (
            "tests/core/test_rebuild_policy.py::test_of_one_rank_the_newest_holder_counts_and_who_was_replaced_is_named",
        ),
    ),
    Bug(
        "a store is built again before the standbys have said what they know",
        "I19",
        "core/scheduler/lost_store.py",
        "is_silent = node.record.state is NodeState.LIVE and node.ready is None",
        "is_silent = False",
        (f"{_REBUILD}::test_standby_that_knows_nothing_is_waited_for_and_changes_nothing",),
    ),
    Bug(
        "while a rank is offered, each message walks over every node",
        "I17",
        "core/scheduler/takeover.py",
        "nobody_to_ask or seats.absent <= asked:",
        "nobody_to_ask:",
        ("tests/core/test_growth.py::test_twice_as_many_workers_cost_the_scheduler_twice_as_much",),
    ),
    Bug(
        "who holds another's place and does not say what it can read is waited for, for ever",
        "I14",
        "core/scheduler/registration.py",
        "        effects += takeover.ask_holder(state, node, now_ms)\n",
        "        effects += takeover.ask_holder(state, node, now_ms)[:1]\n",
        (f"{_AGAIN}::test_who_does_not_answer_is_asked_again_each_time_twice_as_late",),
    ),
    Bug(
        "who has said what it can read is asked again in the next wait",
        "I14",
        "core/scheduler/checkpoint_messages.py",
        "node.ready, node.done, node.asked = ready, False, 0",
        "node.ready, node.done = ready, False",
        (f"{_AGAIN}::test_who_has_answered_is_not_asked_again_in_the_next_wait",),
    ),
    Bug(
        "while a lost store is built again, a worker that found no seat never gets one",
        "I14",
        "core/scheduler/lost_store.py",
        "(had_rank or not node.waits_by_choice)",
        "had_rank",
        (f"{_LEFT}::test_in_a_lost_store_a_worker_that_found_no_seat_takes_that_of_the_next_lost_one",),
    ),
    Bug(
        "while a lost store is built again, nobody takes the seat of who was given up",
        "I14",
        "core/scheduler/takeover.py",
        "return standbys if not state.builds_again or holder.record.node_id in state.spared else {}",
        "return standbys if not state.builds_again else {}",
        (
            f"{_LEFT}::test_in_a_lost_store_a_standby_takes_the_seat_of_who_never_comes_back_to_say_what_it_knows",
        ),
    ),
    Bug(
        "a second process of a fresh id keeps that id from the one that was started for the place",
        "I25",
        "core/scheduler/places.py",
        "_replaced_alive(state, register) or _holder_of_its_place(state, node, register)",
        "_replaced_alive(state, register)",
        (
            f"{_LEFT}::test_second_process_of_a_fresh_id_waits_for_the_holder_of_the_place_by_which_it_is_called",
        ),
    ),
    Bug(
        "who waits for the place by which it is called is not let in when it is free",
        "I25",
        "core/scheduler/waiting.py",
        "register.replaces, first_id(register.node_id))",
        "register.replaces)",
        (
            f"{_LEFT}::test_second_process_of_a_fresh_id_waits_for_the_holder_of_the_place_by_which_it_is_called",
        ),
    ),
    Bug(
        "an id whose place another one's successor holds has none",
        "I25",
        "core/scheduler/places.py",
        "any(_holder(state, name) is not None for name in names)",
        "any(_holder(state, name) is node for name in names if node is not None)",
        (f"{_LEFT}::test_id_whose_place_another_ones_successor_holds_is_let_in_for_the_seat_that_is_left",),
    ),
    Bug(
        "a successor is offered the rank of another lost one, whose own successor cannot read what is left",
        "I25",
        "core/policy/takeover.py",
        'one.node_id not in declined and one.comes_for in ("", wanted.seat))',
        "one.node_id not in declined)",
        (
            f"{_POLICY}::test_who_has_warmed_up_is_asked_first_then_who_comes_for_the_seat_and_never_who_comes_for_another",
            f"{_LEFT}::test_of_two_lost_ranks_each_successor_is_offered_its_own_in_whatever_order_they_come",
        ),
    ),
    Bug(
        "a process that took a rank changes its device with every plan",
        "I22",
        "training/process_start.py",
        "places_of(settings, plan, os.environ) if is_first else {}",
        "places_of(settings, plan, os.environ)",
        ("tests/training/test_places.py::test_the_place_on_the_host_stays_that_of_the_first_plan",),
    ),
)
