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
        "        if left < 0:\n            break\n        chosen.add(one.step)",
        "        if left < -(10**9):\n            break\n        chosen.add(one.step)",
        (_MUCH + "test_six_thousand_checkpoints_fit_into_one_message_newest_first",),
    ),
    Bug(
        "the committed checkpoint is left out behind many newer ones",
        "I9",
        "core/policy/message_share.py",
        "for one in sorted(newest_first, key=lambda one: one.step != committed_step):",
        "for one in newest_first:",
        (_MUCH + "test_the_committed_checkpoint_is_reported_however_many_newer_ones_there_are",),
    ),
    Bug(
        "a connection that ends after its handshake is dialled again at once, for ever",
        "I17",
        "core/worker/connection.py",
        "self._unsettled_closes = 0 if settled else self._unsettled_closes + 1",
        "self._unsettled_closes = 0",
        (_MUCH + "test_a_connection_that_ends_after_each_handshake_is_dialled_ever_later",),
    ),
    Bug(
        "history that was reported for a plan stays in the checkpoint index",
        "I17",
        "core/checkpoints.py",
        "if len(indexed) == INDEXED_STEPS and other < indexed[0]",
        "if other < 0",
        (_MUCH + "test_history_that_was_reported_for_a_plan_does_not_stay_in_the_index",),
    ),
    Bug(
        "the scheduler takes one thing after the other, however much waits for its disk",
        "I17",
        "scheduler/service.py",
        "while self._held and not self._crowded() and not self._over:",
        "while self._held and not self._over:",
        (_HELD + "test_a_loss_while_the_disk_is_stuck_reaches_the_survivors",),
    ),
    Bug(
        "what waited for the disk is not looked at when it has answered",
        "I14",
        "scheduler/service.py",
        "        if self._holding:\n            self._take_held()",
        "        if self._over:\n            self._take_held()",
        (_HELD + "test_a_loss_while_the_disk_is_stuck_reaches_the_survivors",),
    ),
    Bug(
        "messages are delivered to a scheduler that is paused",
        "I17",
        "transport/server.py",
        "while not self._delivering.is_set():",
        "while self._limiter is None:",
        ("tests/transport/test_wire_backpressure.py",),
    ),
    Bug(
        "a worker's store that is behind keeps every note of progress",
        "I17",
        "worker/local_store.py",
        "if writer is not None and writer.crowded and",
        "if writer is not None and self.recovery_path is None and",
        (
            "tests/worker/test_local_store.py::test_a_store_that_is_behind_costs_progress_notes_and_nothing_else",
        ),
    ),
    Bug(
        "who has a seat is not counted again when the ranks are given",
        "I14",
        "core/scheduler/state.py",
        "if is_forming != was_forming:",
        "if is_forming and not was_forming:",
        ("tests/core/test_scheduler_machine.py",),
    ),
    Bug(
        "what becomes of a node is not counted",
        "I14",
        "core/scheduler/node.py",
        "        self._record = record\n        self.count()",
        "        self._record = record",
        (
            "tests/core/test_growth.py::test_a_ready_worker_that_is_cut_off_is_not_counted_as_ready_until_it_is_back",
        ),
    ),
    Bug(
        "each registration walks over every node",
        "I17",
        "core/scheduler/places.py",
        "    others = seats.taken - (",
        "    others = len(state.seated(role)) - (",
        ("tests/core/test_growth.py::test_twice_as_many_workers_cost_the_scheduler_twice_as_much",),
    ),
)
