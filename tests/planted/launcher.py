"""Bugs in the launcher: whom it starts again, whom it ends, and what it says at the end."""

from __future__ import annotations

from tests.planted.bug import Bug

LAUNCHER: tuple[Bug, ...] = (
    Bug(
        "who loses a peer that takes a while to end is taken for the cause",
        "I14",
        "launch/supervise.py",
        "interrupted.wait(_PEER_FOLLOWS_S if lost_peer else _FOLLOWS_S)",
        "interrupted.wait(_FOLLOWS_S)",
        (
            "tests/cluster/test_launcher_plain.py::test_who_ends_last_is_the_cause_where_the_others_name_a_lost_peer",
        ),
    ),
    Bug(
        "who came for a rank of another host comes for its own dead process when it is started again",
        "I25",
        "launch/node_ids.py",
        "self._give_fresh(number, came_for or self.current, taken)",
        "self._give_fresh(number, self.current, taken)",
        (
            "tests/launch/test_process_keeper.py::test_who_comes_for_a_rank_of_another_host_comes_for_it_again_until_it_has_it",
        ),
    ),
    Bug(
        "a scheduler whose store failed is not started again",
        "I14",
        "errors/storage.py",
        'code, exit_code, cause = "STORE_WRITE", 36, Cause.TEMPORARY',
        'code, exit_code, cause = "STORE_WRITE", 36, Cause.PERMANENT',
        ("tests/launch/test_restarts.py::test_the_table",),
    ),
    Bug(
        "a surplus worker ends the job",
        "I4",
        "launch/restarts.py",
        "ended.status == WorldFullError.exit_code and not ended.was_member",
        "ended.status == WorldFullError.exit_code and ended.was_member",
        ("tests/launch/test_restarts.py::test_the_table",),
    ),
    Bug(
        "a host that was cut off loses processes that would have come back",
        "I4",
        "launch/overdue.py",
        "if now_ms - self._free_since_ms < answer.returns_ms:",
        "if now_ms < self._free_since_ms:",
        (
            "tests/launch/test_overdue.py::test_a_node_that_was_lost_while_its_host_was_cut_off_has_time_to_come_back",
        ),
    ),
    Bug(
        "a launcher that could not start a process reports success",
        "I14",
        "launch/agent.py",
        "self._exit_code, self._failed = exit_code_of(status), True",
        "self._exit_code, self._failed = 0, True",
        ("tests/cluster/test_launcher_failures.py::test_a_command_that_cannot_be_started_is_no_success",),
    ),
    Bug(
        "a launcher in the background is looked for by the wall clock",
        "I14",
        "launch/background.py",
        "        if noted.identity:",
        "        if not noted.identity:",
        (
            "tests/cluster/test_launcher_failures.py::test_a_launcher_in_the_background_is_found_after_a_step_of_the_wall_clock",
        ),
    ),
    Bug(
        "a child begins although its parent is dead",
        "I1",
        "launch/begin_child.py",
        "if os.getppid() != int(parent):",
        "if os.getppid() < 0:",
        ("tests/launch/test_children.py::test_a_child_whose_parent_died_before_it_began_does_not_begin",),
    ),
    Bug(
        "the next start waits until the scheduler has heard of the death",
        "I14",
        "launch/process_keeper.py",
        "            self._report(attempt, pid, gives_up=decision.next is Next.FAIL)\n",
        "            self._report(attempt, pid, gives_up=decision.next is Next.FAIL)\n"
        "            await asyncio.gather(*self._reports)\n",
        (
            "tests/launch/test_process_keeper.py::test_the_next_start_does_not_wait_until_the_scheduler_has_heard_of_the_death",
        ),
    ),
    Bug(
        "a lost worker's next process waits for the window of its id",
        "I14",
        "launch/node_ids.py",
        "if not self.fresh or not may_have_been:",
        "if not self.fresh or may_have_been:",
        ("tests/launch/test_node_ids.py",),
    ),
    Bug(
        "a fresh id names one that the scheduler does not know",
        "I14",
        "launch/node_ids.py",
        "may_have_been = self.replaces is None if was_member is None else was_member",
        "may_have_been = was_member is not False",
        (
            "tests/launch/test_node_ids.py::test_where_nobody_knows_the_first_is_taken_for_a_member_and_a_later_one_is_not",
        ),
    ),
    Bug(
        "an id that an earlier launcher has used is given again, and refused for its window",
        "I14",
        "launch/node_ids.py",
        'while (fresh := f"{self._first}.{number}") in taken:',
        'while (fresh := f"{self._first}.{number}") == "":',
        ("tests/launch/test_node_ids.py::test_an_id_that_an_earlier_launcher_has_used_is_not_given_again",),
    ),
    Bug(
        "a standby that fails for good ends the job",
        "I4",
        "launch/restarts.py",
        "if row.next is Next.FAIL and ended.recovery_enabled and not ended.needed:",
        "if row.next is Next.FAIL and not ended.recovery_enabled and not ended.needed:",
        ("tests/launch/test_restarts.py::test_the_table",),
    ),
    Bug(
        "a worker that the job waits for fails for good, and the job waits on",
        "I14",
        "launch/known_job.py",
        "if self.state == JobState.FORMING.value and not is_standby:",
        "if self.state == JobState.FORMING.value and is_standby:",
        ("tests/launch/test_known_job.py::test_a_job_needs_who_holds_a_rank",),
    ),
    Bug(
        "all hosts start a missing rank at once",
        "I17",
        "launch/missing_ranks.py",
        "wait_ms = after_ms * (1 + min(order.index(host) for host in ours))",
        "wait_ms = after_ms",
        ("tests/launch/test_missing_ranks.py::test_the_next_host_waits_as_long_again",),
    ),
    Bug(
        "a host starts a rank again that it is starting already",
        "I17",
        "launch/missing_ranks.py",
        "if node.silent_ms >= wait_ms and not _is_ours(node, places)",
        "if node.silent_ms >= wait_ms",
        (
            "tests/launch/test_missing_ranks.py::test_what_is_started_again_under_a_fresh_id_is_not_missing_either",
        ),
    ),
    Bug(
        "a process that took another rank works on the device of the rank it was started for",
        "I10",
        "training/process_start.py",
        "if settings.replaces or (settings.standby and name not in environ)",
        "if name not in environ",
        ("tests/training/test_places.py",),
    ),
    Bug(
        "a process that took another rank than it was started for is ended",
        "I14",
        "launch/rank_takers.py",
        "if taker.node_id not in holders:",
        "if taker.node_id not in holders or rank not in still_missing:",
        ("tests/launch/test_rank_takers.py::test_takers_may_have_taken_each_others_ranks",),
    ),
    Bug(
        "a launcher that is started again finds no place for a worker whose rank a later id held",
        "I14",
        "core/scheduler/places.py",
        "return bool(register.replaces) or is_known",
        "return bool(register.replaces)",
        (
            "tests/core/test_seats_left.py::test_id_whose_place_another_ones_successor_holds_is_let_in_for_the_seat_that_is_left",
        ),
    ),
    Bug(
        "a scheduler that is started again never hears that a process was given up",
        "I14",
        "launch/given_up_rank.py",
        "                await report()\n",
        "",
        (
            "tests/launch/test_process_keeper.py::test_a_scheduler_that_is_started_again_is_told_again_that_a_process_is_given_up",
        ),
    ),
    Bug(
        "a worker that ends while the scheduler is started again ends the job that a standby could save",
        "I14",
        "launch/given_up_rank.py",
        "not was_heard or clock.monotonic_ms() - heard_ms > _SILENT_MS:",
        "clock.monotonic_ms() - heard_ms >= 0:",
        (
            "tests/launch/test_process_keeper.py::test_a_scheduler_that_is_started_again_is_told_again_that_a_process_is_given_up",
        ),
    ),
)
