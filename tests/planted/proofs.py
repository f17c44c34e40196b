"""Bugs in what follows from the end of a process, and in who is told when its time has come."""

from __future__ import annotations

from tests.planted.bug import Bug

_PROOF = "tests/core/test_proof_of_death.py::"
_IDENTITY = "tests/scheduler/test_process_identity.py::"
_WAITING = "tests/core/test_waiting.py::"

PROOFS = (
    Bug(
        "a process of another boot is taken for one of this host",
        "I23",
        "process_identity.py",
        "has_ended",
        "not identity.boot_id or identity.boot_id != clock.boot_id()",
        "not identity.boot_id",
        (f"{_IDENTITY}test_nothing_is_proven_of_a_process_elsewhere",),
    ),
    Bug(
        "a process of another container is taken for one of this one",
        "I23",
        "process_identity.py",
        "has_ended",
        "not 0 < pid <= _PID_MAX or identity.pid_namespace != _pid_namespace()",
        "not 0 < pid <= _PID_MAX",
        (f"{_IDENTITY}test_nothing_is_proven_of_a_process_elsewhere",),
    ),
    Bug(
        "a container that shows its host's processes proves deaths by them",
        "I23",
        "process_identity.py",
        "_proc_is_ours",
        '(_PROC / "self").readlink() == Path(str(os.getpid()))',
        "True",
        (f"{_IDENTITY}test_nothing_is_proven_where_the_kernels_files_cannot_be_read",),
    ),
    Bug(
        "a process whose first thread is over counts as ended",
        "I23",
        "process_identity.py",
        "_has_ended_by_proc",
        "stat.state in _ENDED_STATES and stat.threads <= 1",
        "stat.state in _ENDED_STATES",
        (f"{_IDENTITY}test_a_process_whose_first_thread_is_over_goes_on",),
    ),
    Bug(
        "a number that is used again stands in for the process before",
        "I14",
        "process_identity.py",
        "_is_another",
        "stat.start_ticks != identity.start_ticks",
        "False",
        (f"{_IDENTITY}test_a_number_that_is_another_process_now_proves_the_end_of_the_first",),
    ),
    Bug(
        "a descriptor is believed without a look at the process",
        "I23",
        "scheduler/process_watch.py",
        "ProcessWatch._look",
        "process_identity.has_ended(watched.process, watched.pid)",
        "watched.pid",
        (
            "tests/scheduler/test_process_watch.py::test_a_descriptor_that_tells_of_a_process_that_runs_is_not_believed",
        ),
    ),
    Bug(
        "the end of an earlier incarnation's process counts for the next one",
        "I23",
        "core/scheduler/membership/liveness.py",
        "on_process_gone",
        "state.job_ended or node is None or node.record.incarnation != gone.incarnation",
        "state.job_ended or node is None",
        (f"{_PROOF}test_the_end_of_the_process_before_means_nothing_for_its_successor",),
    ),
    Bug(
        "a report counts whichever process it names",
        "I23",
        "core/scheduler/membership/death_proof.py",
        "is_of_another",
        "exited.process is not None and node.process is not None and exited.process != node.process",
        "False",
        (f"{_PROOF}test_a_report_about_another_process_of_the_same_number_means_nothing",),
    ),
    Bug(
        "a report without an identity ends a window",
        "I3",
        "core/scheduler/membership/death_proof.py",
        "proves",
        "exited.process is not None and exited.process == node.process",
        "True",
        (f"{_PROOF}test_a_report_without_identity_ends_no_window",),
    ),
    Bug(
        "a proof ends the window without MS_REJOIN=proof",
        "I3",
        "core/scheduler/membership/death_proof.py",
        "end_window",
        "node.proven_dead and state.rules.rejoin_on_proof",
        "node.proven_dead",
        (f"{_PROOF}test_by_default_a_proven_death_leaves_the_window_open",),
    ),
    Bug(
        "who speaks after a report of its end stays proven dead",
        "I23",
        "core/scheduler/machine.py",
        "SchedulerMachine._from_speaker",
        "node.heard_ms, node.proven_dead = now_ms, False",
        "node.heard_ms = now_ms",
        (f"{_PROOF}test_who_speaks_after_a_report_of_its_end_was_slandered",),
    ),
    Bug(
        "a restarted scheduler watches nobody",
        "I14",
        "core/scheduler/restore.py",
        "start",
        "effects += death_proof.watch(state, node)",
        "pass",
        (f"{_PROOF}test_a_restarted_scheduler_watches_everybody_who_may_be_alive",),
    ),
)

WAITING = (
    Bug(
        "who waits is not told that the holder was lost",
        "I14",
        "core/scheduler/membership/liveness.py",
        "_lose",
        "state.waiting.note_free(record.node_id, node.slot)",
        "",
        (f"{_WAITING}test_the_same_while_the_world_forms_and_no_generation_ends",),
    ),
    Bug(
        "who asks again while it is told loses its connection",
        "I13",
        "core/scheduler/membership/registration.py",
        "on_register",
        "speaker.record.admission_request == register.request_id",
        "not register.request_id",
        (f"{_WAITING}test_who_asks_again_while_it_is_told_stays_in",),
    ),
    Bug(
        "who waits has no bound",
        "I17",
        "core/scheduler/refused.py",
        "WaitingList.add",
        "len(self._by_connection) >= self._at_most",
        "len(self._by_connection) >= 10 * self._at_most",
        (f"{_WAITING}test_who_waits_is_bounded_and_who_came_first_stays",),
    ),
    Bug(
        "who has hung up is let in",
        "I1",
        "core/scheduler/membership/liveness.py",
        "on_connection_lost",
        "state.waiting.forget(lost.connection)",
        "",
        (f"{_WAITING}test_who_has_hung_up_is_not_let_in",),
    ),
    Bug(
        "who waits keeps the places of those who register",
        "I17",
        "transport/connection_limiter.py",
        "ConnectionLimiter.answered",
        "accepted.registering = False\nself._registering_count -= 1",
        "accepted.registering = True",
        (
            "tests/transport/test_connection_limiter.py::test_whoever_was_refused_for_now_and_stays_takes_no_place_of_those_who_register",
        ),
    ),
    Bug(
        "a worker that was told dials all the same",
        "I13",
        "core/worker/connection.py",
        "Connection.on_dial_due",
        "if not self._dial_is_due:\n    return []",
        "",
        (
            "tests/core/test_worker_admission.py::test_a_refused_worker_is_told_on_the_standing_connection_and_asks_no_more",
        ),
    ),
)
