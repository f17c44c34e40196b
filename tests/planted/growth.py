"""Bugs in what grows with a large job, or with whoever knocks at its port."""

from __future__ import annotations

from tests.planted.bug import Bug

_HELD = "tests/scheduler/test_backpressure.py::"
_MUCH = "tests/core/test_much_held.py::"

GROWTH: tuple[Bug, ...] = (
    Bug(
        "a rank tells of every checkpoint that it holds, whatever a frame carries",
        "I17",
        "core/policy/message_share.py",
        "newest_that_fit",
        "if left < 0:\n    break",
        "if left < -(10**9):\n    break",
        (_MUCH + "test_six_thousand_checkpoints_fit_into_one_message_newest_first",),
    ),
    Bug(
        "the committed checkpoint is left out behind many newer ones",
        "I9",
        "core/policy/message_share.py",
        "newest_that_fit",
        "sorted(newest_first, key=lambda checkpoint: checkpoint.step != committed_step)",
        "newest_first",
        (_MUCH + "test_the_committed_checkpoint_is_reported_however_many_newer_ones_there_are",),
    ),
    Bug(
        "a connection that ends after its handshake is dialled again at once, for ever",
        "I17",
        "core/worker/connection.py",
        "Connection._next_dial",
        "0 if settled else self._unsettled_closes + 1",
        "0",
        (_MUCH + "test_a_connection_that_ends_after_each_handshake_is_dialled_ever_later",),
    ),
    Bug(
        "history that was reported for a plan stays in the checkpoint index",
        "I17",
        "core/checkpoints.py",
        "CheckpointIndex.roll_back",
        "[known for known in self._steps if known < oldest]",
        "[]",
        (_MUCH + "test_history_that_was_reported_for_a_plan_does_not_stay_in_the_index",),
    ),
    Bug(
        "the scheduler takes one thing after the other, however much waits for its disk",
        "I17",
        "scheduler/service.py",
        "_Service._take_held",
        "self._held and not self._crowded() and not self._over",
        "self._held and not self._over",
        (_HELD + "test_a_loss_while_the_disk_is_stuck_reaches_the_survivors",),
        hangs=True,
    ),
    Bug(
        "what waited for the disk is not looked at when it has answered",
        "I14",
        "scheduler/service.py",
        "_Service._release",
        "if self._holding:",
        "if self._over:",
        (_HELD + "test_a_loss_while_the_disk_is_stuck_reaches_the_survivors",),
        hangs=True,
    ),
    Bug(
        "messages are delivered to a scheduler that is paused",
        "I17",
        "transport/server.py",
        "Server._take",
        "not self._delivering.is_set()",
        "self._limiter is None",
        ("tests/transport/test_wire_backpressure.py",),
    ),
    Bug(
        "a worker's store that is behind keeps every note of progress",
        "I17",
        "worker/local_store.py",
        "LocalStore.submit",
        "writer is not None and writer.crowded and not persist.then and _is_progress(persist)",
        "writer is not None and self.recovery_path is None and not persist.then and _is_progress(persist)",
        (
            "tests/worker/test_local_store.py::test_a_store_that_is_behind_costs_progress_notes_and_nothing_else",
        ),
    ),
    Bug(
        "who has a slot is not counted again when the ranks are given",
        "I14",
        "core/scheduler/state.py",
        "SchedulerState.change_job",
        "is_forming != was_forming",
        "is_forming and not was_forming",
        ("tests/core/test_scheduler_machine.py",),
    ),
    Bug(
        "what becomes of a node is not counted",
        "I14",
        "core/scheduler/node.py",
        "Node.record",
        "self.count()",
        "pass",
        (
            "tests/core/test_growth.py::test_a_ready_worker_that_is_cut_off_is_not_counted_as_ready_until_it_is_back",
        ),
    ),
    Bug(
        "each registration walks over every node",
        "I17",
        "core/scheduler/membership/slot_choice.py",
        "_is_free",
        "slots.taken - (node is not None and state.has_slot(node))",
        "len(state.slot_holders(role)) - (node is not None and state.has_slot(node))",
        ("tests/core/test_growth.py::test_twice_as_many_workers_cost_the_scheduler_twice_as_much",),
    ),
)
