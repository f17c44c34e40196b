"""Bugs in what is said to whom and when: answers behind writes, repeats, deadlines, bounds."""

from __future__ import annotations

from tests.planted.bug import Bug

ANSWERS = (
    Bug(
        "a fact that a worker's table does not know is passed over",
        "I19",
        "core/worker/transitions.py",
        "next_worker_state",
        "fact in moves or fact in WORKER_STAYS[state]",
        "bool(fact)",
        (
            "tests/core/test_worker_machine.py::test_a_plan_that_is_given_to_a_main_thread_in_training_is_a_fault_and_not_nothing",
        ),
    ),
    Bug(
        "a worker goes on with what a fault has left half changed",
        "I19",
        "worker/stimulus_queue.py",
        "StimulusQueue._take",
        "self._is_over = True",
        "self._is_over = False",
        ("tests/worker/test_stimulus_queue.py::test_after_an_exception_nothing_more_is_taken",),
    ),
    Bug(
        "a message that is no request is taken for the repeat of one without a name",
        "I13",
        "core/scheduler/machine.py",
        "SchedulerMachine._from_speaker",
        'getattr(message, "request_id", None)',
        'getattr(message, "request_id", RequestId(""))',
        ("tests/core/test_sent_again.py::test_a_request_without_a_name_mutes_nobody",),
    ),
    Bug(
        "the end of the job is sent before it is written",
        "I5",
        "core/scheduler/job_end.py",
        "end",
        "return [Persist((*before, job, run, event), answers), end_within(state, SHUTDOWN_MS, now_ms)]",
        "from recovery.core.scheduler.effects import Send\n"
        "return [*(Send(one.connection, one.message) for one in answers), Persist((*before, job, run, event)), end_within(state, SHUTDOWN_MS, now_ms)]",
        ("tests/core/test_late_messages.py::test_nobody_hears_of_the_end_before_it_is_written",),
    ),
    Bug(
        "the scheduler's answers do not wait for the disk",
        "I5",
        "scheduler/executor.py",
        "Executor._persist",
        "self._writer.submit(persist.records, persist)",
        "self.release(persist)\nself._writer.submit(persist.records, Persist(()))",
        (
            "tests/scheduler/test_answers_wait.py::test_an_answer_waits_for_the_disk_and_what_promises_nothing_overtakes_it",
        ),
    ),
    Bug(
        "a reconnect sends a report whose row is not written yet",
        "I5",
        "core/worker/requests.py",
        "Requests.send_all",
        "request.request_id not in self._unstored",
        "bool(request.request_id)",
        (
            "tests/core/test_last_checkpoint.py::test_neither_a_report_nor_the_end_leaves_before_the_row_of_the_report",
        ),
    ),
    Bug(
        "a worker reports a checkpoint before its row is written",
        "I5",
        "core/worker/checkpoint_messages.py",
        "CheckpointMessages.on_published",
        "[Persist((row,), (Report(report),))]",
        "[Send(report), Persist((row,))]",
        ("tests/core/test_worker_machine.py::test_what_was_not_answered_is_sent_again_after_a_reconnect",),
    ),
    Bug(
        "a commit is sent that is not written",
        "I5",
        "core/scheduler/checkpoints/reports.py",
        "on_checkpoint_report",
        "[*state.checkpoints.committed_records(held.step), *state.checkpoints.retire(*needed)]",
        "state.checkpoints.retire(*needed)",
        ("tests/core/test_scheduler_machine.py::test_a_step_is_committed_when_every_rank_holds_it",),
    ),
    Bug(
        "a request that is sent twice has two effects",
        "I13",
        "core/scheduler/machine.py",
        "SchedulerMachine._from_speaker",
        "answer is not None",
        "answer is not None and node.done",
        ("tests/core/test_late_messages.py::test_a_request_sent_twice_has_one_effect_and_the_same_answer",),
    ),
    Bug(
        "answers are kept without a bound",
        "I17",
        "core/scheduler/node.py",
        "Node.remember",
        "len(self.answers) > at_most",
        "len(self.answers) > at_most * 1_000",
        ("tests/core/test_scheduler_ends.py::test_answers_kept_for_repeats_are_bounded",),
    ),
    Bug(
        "what was not answered is not sent again",
        "I13",
        "core/worker/requests.py",
        "Requests.send_all",
        "request.request_id not in self._held_back",
        "request.request_id in self._held_back",
        ("tests/core/test_worker_machine.py::test_what_was_not_answered_is_sent_again_after_a_reconnect",),
    ),
    Bug(
        "a fenced incarnation may name the rendezvous",
        "I12",
        "core/scheduler/generations/training_messages.py",
        "on_rendezvous_open",
        "opened.generation != state.job.generation or state.job.state is not JobState.RUNNING",
        "state.job.state is not JobState.RUNNING",
        ("tests/core/test_scheduler_ends.py::test_rendezvous_first_steps_and_late_messages",),
    ),
)

EXITS = (
    Bug(
        "a launcher's report about an earlier process counts for the next one",
        "I12",
        "core/scheduler/membership/death_proof.py",
        "is_of_another",
        "exited.pid != node.record.pid",
        "node.record.pid == -1",
        ("tests/core/test_exits_seen.py::test_a_report_about_another_process_means_nothing",),
    ),
    Bug(
        "a launcher's word takes a place while its holder is connected",
        "I1",
        "core/scheduler/membership/liveness.py",
        "_exit_seen",
        "node.record = msgspec.structs.replace(node.record, reason=known)\nreturn []",
        "node.record = msgspec.structs.replace(node.record, reason=known)\n"
        "return _gone(state, node, exited.reason, now_ms)",
        ("tests/core/test_exits_seen.py::test_who_speaks_on_is_not_lost_by_a_wrong_report",),
    ),
    Bug(
        "everybody waits for a worker that its launcher has given up",
        "I14",
        "core/scheduler/membership/liveness.py",
        "give_up",
        "state.job_ended",
        "not state.job_ended",
        ("tests/core/test_exits_seen.py::test_a_launcher_that_gives_up_ends_the_job_for_everybody",),
    ),
)


DEADLINES = (
    Bug(
        "a main thread that does not come back is waited for, for ever",
        "I14",
        "core/worker/main_thread.py",
        "MainThread.interrupt",
        '[*noted, Interrupt(self.generation, reason), Log("interrupted", f"generation {self.generation} ended: {reason}"), SetTimer(s.WorkerTimer.ABORT, now_ms + self._rules.abort_timeout_ms)]',
        '[*noted, Interrupt(self.generation, reason), Log("interrupted", f"generation {self.generation} ended: {reason}"), ]',
        (
            "tests/core/test_worker_machine.py::test_an_interrupt_stops_the_main_thread_and_the_next_plan_opens_it_again",
        ),
    ),
    Bug(
        "who was refused first does not notice the silence of the scheduler",
        "I14",
        "core/worker/connection.py",
        "Connection.on_admitted",
        "[SetTimer(s.WorkerTimer.SILENCE, now_ms + self._rules.receive_timeout_ms)]",
        "[]",
        (
            "tests/core/test_worker_admission.py::test_who_was_refused_and_is_admitted_on_the_same_connection_notices_when_it_falls_silent",
        ),
    ),
    Bug(
        "the silence of the scheduler is not noticed",
        "I14",
        "core/worker/connection.py",
        "Connection.on_silence_due",
        "silent_ms >= self._rules.receive_timeout_ms",
        "silent_ms < 0",
        ("tests/core/test_worker_machine.py::test_silence_of_the_scheduler_is_ended_by_dialling_again",),
    ),
    Bug(
        "a missing worker is waited for, for ever",
        "I14",
        "core/scheduler/membership/quorum.py",
        "on_deadline",
        "now_ms < state.deadline_ms",
        "now_ms <= state.deadline_ms + 10",
        ("tests/core/test_scheduler_ends.py::test_a_lost_worker_that_stays_away_fails_the_job_by_name",),
    ),
    Bug(
        "a refused worker asks again at once",
        "I17",
        "core/worker/connection.py",
        "Connection.on_refused",
        "now_ms + refused.retry_after_ms",
        "now_ms",
        (
            "tests/core/test_worker_admission.py::test_a_refused_worker_says_so_once_and_asks_again_at_the_exact_time",
        ),
    ),
    Bug(
        "a thousand workers dial in the same instant",
        "I17",
        "core/policy/backoff.py",
        "next_dial_ms",
        "full / 2 + full / 2 * jitter",
        "full / 2",
        ("tests/core/test_late_messages.py::test_dials_are_spread_over_half_of_the_wait",),
    ),
)

BOUNDS = (
    Bug(
        "a stranger may send as much as a node",
        "I17",
        "transport/server.py",
        "Server._take",
        "self._rules.frame_bytes_max if connection.admitted else self._rules.frame_bytes_max_unregistered",
        "self._rules.frame_bytes_max",
        ("tests/transport/test_wire_hostile.py::test_an_unregistered_peer_may_not_send_as_much_as_a_node",),
    ),
    Bug(
        "what waits for a peer that does not read has no bound",
        "I17",
        "transport/outbox.py",
        "Outbox.put",
        "len(self._frames) >= MESSAGES_MAX or self._bytes + len(frame) > BYTES_MAX",
        "len(self._frames) < 0",
        ("tests/transport/test_wire_server.py::test_the_outbox_is_bounded_in_messages_and_in_bytes",),
    ),
    Bug(
        "one hostile address takes the places of the others",
        "I17",
        "transport/connection_limiter.py",
        "ConnectionLimiter.request_received",
        "max(self._waiting.values(), key=len)",
        "next(iter(self._waiting.values()))",
        (
            "tests/transport/test_connection_limiter.py::test_beyond_256_beside_the_nodes_the_oldest_unregistered_connection_of_the_address_with_most_is_closed",
        ),
    ),
    Bug(
        "who has proven the token makes room for strangers",
        "I17",
        "transport/connection_limiter.py",
        "ConnectionLimiter.opened",
        "if proven:",
        "if proven is None:",
        (
            "tests/transport/test_connection_limiter.py::test_who_has_proven_the_token_of_the_job_loses_its_place_to_no_stranger",
        ),
        hangs=True,
    ),
    Bug(
        "what is rejected has an effect",
        "I12",
        "transport/connection_limiter.py",
        "ConnectionLimiter._reject",
        "accepted.cut_off is not None",
        "accepted.registering and accepted.cut_off is not None",
        (
            "tests/transport/test_connection_limiter.py::test_a_message_that_is_read_when_its_connection_is_rejected_has_no_effect",
        ),
    ),
    Bug(
        "a peer without a first message stays",
        "I14",
        "transport/connection_limiter.py",
        "ConnectionLimiter.connection_made",
        'self._arm(accepted, FIRST_MESSAGE_S, f"no message of ours within {FIRST_MESSAGE_S:g} s")',
        'self._arm(accepted, 1_000 * FIRST_MESSAGE_S, f"no message of ours within {FIRST_MESSAGE_S:g} s")',
        (
            "tests/transport/test_deadlines_of_silence.py::test_a_peer_without_a_message_has_the_deadline_of_the_first_one",
        ),
    ),
    Bug(
        "a connection number is used twice",
        "I12",
        "transport/server.py",
        "Server._serve",
        "next(self._numbers)",
        "len(self._connections) + 1",
        ("tests/transport/test_wire_server.py::test_connection_numbers_are_never_used_twice",),
    ),
    Bug(
        "a closed connection is not reported",
        "I14",
        "transport/server.py",
        "Server._end",
        "not connection.delivered",
        "connection.delivered",
        ("tests/transport/test_wire_client.py::test_a_broken_socket_is_reported_once",),
    ),
)

PROTOCOL = ANSWERS + EXITS + DEADLINES + BOUNDS
