"""Bugs in who is let in and who may still speak: registration, windows, leases, fences."""

from __future__ import annotations

from tests.planted.bug import Bug

REGISTRATION = (
    Bug(
        "the window is 29 s",
        "I3",
        "core/scheduler/liveness.py",
        "node.window_ends_ms = node.heard_ms + state.rules.rejoin_window_ms",
        "node.window_ends_ms = node.heard_ms + state.rules.rejoin_window_ms - 1_000",
        (
            "tests/core/test_scheduler_ends.py::test_what_was_left_of_a_window_is_applied_again_after_a_restart",
        ),
    ),
    Bug(
        "the window begins at the loss instead of the last message",
        "I3",
        "core/scheduler/liveness.py",
        "node.window_ends_ms = node.heard_ms + state.rules.rejoin_window_ms",
        "node.window_ends_ms = now_ms + state.rules.rejoin_window_ms",
        ("tests/core/test_scheduler_ends.py::test_a_restarted_scheduler_gives_one_lease_to_return",),
    ),
    Bug(
        "the window is a millisecond too long",
        "I3",
        "core/scheduler/node.py",
        "if now_ms < self.window_ends_ms else",
        "if now_ms <= self.window_ends_ms else",
        ("tests/core/test_scheduler_ends.py::test_a_restarted_scheduler_gives_one_lease_to_return",),
    ),
    Bug(
        "a live id is taken over",
        "I1",
        "core/policy/registration.py",
        "_ANY_SEATS,       Verdict.NODE_ALIVE),",
        "_ANY_SEATS,       Verdict.ADMIT),",
        ("tests/core/test_scheduler_ends.py::test_a_restarted_scheduler_gives_one_lease_to_return",),
    ),
    Bug(
        "a lost id is let in at once",
        "I3",
        "core/policy/registration.py",
        "_ANY_SEATS,       Verdict.REJOIN_WINDOW),",
        "_ANY_SEATS,       Verdict.ADMIT),",
        (
            "tests/core/test_scheduler_ends.py::test_what_was_left_of_a_window_is_applied_again_after_a_restart",
        ),
    ),
    Bug(
        "an incarnation with an earlier token resumes",
        "I12",
        "core/policy/registration.py",
        "_row(_KNOWN,                     (Token.EARLIER,),                              _ANY_WINDOW,     _ANY_SEATS,       Verdict.FENCED)",
        "_row(_KNOWN,                     (Token.EARLIER,),                              _ANY_WINDOW,     _ANY_SEATS,       Verdict.RESUME)",
        ("tests/core/test_scheduler_machine.py::test_a_stopped_process_is_fenced_once_the_next_is_in",),
    ),
    Bug(
        "an earlier token counts as none",
        "I12",
        "core/scheduler/admission.py",
        "return Token.EARLIER if register.incarnation < record.incarnation else Token.FOREIGN",
        "return Token.FOREIGN",
        ("tests/core/test_scheduler_machine.py::test_a_stopped_process_is_fenced_once_the_next_is_in",),
    ),
    Bug(
        "any token of a known node is its own",
        "I1",
        "core/scheduler/admission.py",
        "if token_digest(register.token) == record.token_digest:",
        "if len(token_digest(register.token)) == len(record.token_digest):",
        ("tests/core/test_scheduler_machine.py::test_a_stopped_process_is_fenced_once_the_next_is_in",),
    ),
    Bug(
        "resume tokens are stored as they are",
        "I16",
        "core/tokens.py",
        "return hashlib.sha256(token.encode()).hexdigest()",
        "return token",
        ("tests/core/test_late_messages.py::test_a_resume_token_is_stored_as_a_digest_only",),
    ),
    Bug(
        "a refused try extends the window",
        "I4",
        "core/scheduler/admission.py",
        "held = node.held(has_seat=seats is Seats.FREE)",
        "held, node.window_ends_ms = node.held(has_seat=seats is Seats.FREE), node.window_ends_ms + 1_000",
        ("tests/core/test_scheduler_ends.py::test_a_restarted_scheduler_gives_one_lease_to_return",),
    ),
    Bug(
        "a refused try refreshes the holder's lease",
        "I4",
        "core/scheduler/admission.py",
        "held = node.held(has_seat=seats is Seats.FREE)",
        "held, node.heard_ms = node.held(has_seat=seats is Seats.FREE), now_ms",
        ("tests/core/test_scheduler_machine.py::test_a_living_id_is_refused_and_its_holder_untouched",),
    ),
    Bug(
        "every refused try is written down",
        "I17",
        "core/scheduler/refusals.py",
        "if self._codes.get(node_id) == code:",
        "if code in self._codes:",
        (
            "tests/core/test_scheduler_machine.py::test_a_lost_id_is_refused_to_the_millisecond_and_tries_change_nothing",
        ),
    ),
    Bug(
        "a new incarnation has the number of the one before",
        "I2",
        "core/scheduler/admission.py",
        "Incarnation(node.record.incarnation + 1 if node else 1)",
        "Incarnation(node.record.incarnation if node else 1)",
        ("tests/core/test_scheduler_ends.py::test_done_is_a_barrier_and_the_next_start_is_the_next_run",),
    ),
    Bug(
        "a repeated admission begins another incarnation",
        "I13",
        "core/scheduler/admission.py",
        "if proven and register.request_id == record.admission_request:",
        "if proven and register.request_id == record.token_digest:",
        (
            "tests/core/test_scheduler_machine.py::test_a_repeat_of_an_admission_whose_answer_was_lost_finds_the_same_incarnation",
        ),
    ),
    Bug(
        "one worker more than seats is let in",
        "I9",
        "core/scheduler/places.py",
        "if others >= state.seat_count(role):",
        "if others > state.seat_count(role):",
        (
            "tests/core/test_scheduler_machine.py::test_a_node_lost_while_forming_gives_its_seat_free_but_not_its_id",
        ),
    ),
    Bug(
        "a worker of another world size is let in",
        "I9",
        "core/scheduler/admission.py",
        "if its != ours:",
        "if its < 0 != ours:",
        ("tests/core/test_scheduler_machine.py::test_who_is_of_another_job_is_refused",),
    ),
)

PRESENCE = (
    Bug(
        "a lost incarnation may still speak",
        "I12",
        "core/scheduler/liveness.py",
        "connection = state.disconnect(node)\n    effects",
        "connection = node.connection\n    effects",
        (
            "tests/core/test_scheduler_machine.py::test_a_silent_node_is_lost_after_its_lease_and_resumes_into_the_next_generation",
        ),
    ),
    Bug(
        "a closed socket counts as silence since the last message",
        "I3",
        "core/scheduler/liveness.py",
        "was heard just now.\n    node.heard_ms = now_ms",
        "was heard just now.\n    node.heard_ms = min(now_ms, node.heard_ms)",
        (
            "tests/core/test_scheduler_machine.py::test_a_lost_id_is_refused_to_the_millisecond_and_tries_change_nothing",
        ),
    ),
    Bug(
        "a dropped connection has no grace",
        "I3",
        "core/scheduler/liveness.py",
        "node.suspect_until_ms = now_ms + state.rules.reconnect_grace_ms\n    record",
        "node.suspect_until_ms = now_ms\n    record",
        ("tests/core/test_scheduler_machine.py::test_a_dropped_connection_costs_nothing_within_the_grace",),
    ),
    Bug(
        "a silent node keeps its place",
        "I14",
        "core/scheduler/liveness.py",
        "if silent_ms < state.rules.lease_ms:",
        "if silent_ms <= 10 * state.rules.lease_ms:",
        (
            "tests/core/test_scheduler_machine.py::test_servers_are_waited_for_and_their_loss_interrupts_nobody",
        ),
    ),
    Bug(
        "a scheduler that was paused ends its nodes' leases",
        "I3",
        "core/scheduler/liveness.py",
        "if now_ms - node.lease_check_ms >= PAUSE_MS:",
        "if now_ms < node.lease_check_ms:",
        ("tests/core/test_wrong_moment.py::test_a_scheduler_that_was_paused_loses_nobody_by_that",),
    ),
    Bug(
        "a restarted scheduler gives no lease to return",
        "I3",
        "core/scheduler/restore.py",
        "node.suspect_until_ms = now_ms + state.rules.lease_ms",
        "node.suspect_until_ms = now_ms",
        ("tests/core/test_stories.py::test_a_story_goes_as_it_is_written",),
    ),
    Bug(
        "a restart forgets the open windows",
        "I3",
        "core/scheduler/restore.py",
        "now_ms + min(node.record.rejoin_left_ms, state.rules.rejoin_window_ms)",
        "now_ms",
        (
            "tests/core/test_scheduler_ends.py::test_what_was_left_of_a_window_is_applied_again_after_a_restart",
        ),
    ),
    Bug(
        "a restart begins every window again",
        "I3",
        "core/scheduler/restore.py",
        "now_ms + min(node.record.rejoin_left_ms, state.rules.rejoin_window_ms)",
        "now_ms + state.rules.rejoin_window_ms",
        (
            "tests/core/test_scheduler_ends.py::test_what_was_left_of_a_window_is_applied_again_after_a_restart",
        ),
    ),
    Bug(
        "what is left of a window is not written down",
        "I3",
        "core/scheduler/liveness.py",
        "if node.record.state is NodeState.LOST and node.record.rejoin_left_ms != left_ms:",
        "if node.record.state is NodeState.LEFT and node.record.rejoin_left_ms != left_ms:",
        (
            "tests/core/test_scheduler_ends.py::test_what_was_left_of_a_window_is_applied_again_after_a_restart",
        ),
    ),
    Bug(
        "the scheduler's incarnation does not rise",
        "I2",
        "core/scheduler/job.py",
        "Incarnation(job.scheduler_incarnation + 1)",
        "Incarnation(job.scheduler_incarnation)",
        (
            "tests/core/test_scheduler_ends.py::test_a_restarted_scheduler_takes_everyone_back_and_nothing_happened",
        ),
    ),
    Bug(
        "an answer from before the pause confirms the place",
        "I1",
        "core/worker/heartbeats.py",
        "ack.sequence < self._confirming:",
        "ack.sequence < self._confirming - 1:",
        ("tests/core/test_worker_machine.py::test_a_pause_is_confirmed_by_an_answer_to_a_later_heartbeat",),
    ),
    Bug(
        "a process that was paused steps on unasked",
        "I1",
        "worker/training_control.py",
        "if paused_ms > self._pause_limit_ms or not self._confirmed:",
        "if paused_ms < 0:",
        (
            "tests/worker/test_training_control.py::test_a_process_that_was_paused_steps_on_only_when_its_place_is_confirmed",
        ),
    ),
    Bug(
        "the resume token stays in the environment",
        "I16",
        "worker/exec_in_place.py",
        "os.environ.pop(TOKEN_VARIABLE, None)",
        "os.environ.get(TOKEN_VARIABLE)",
        (
            "tests/worker/test_exec_in_place.py::test_the_token_is_taken_out_of_the_environment_so_that_no_child_sees_it",
        ),
    ),
)

SESSION = REGISTRATION + PRESENCE
