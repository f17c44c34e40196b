"""Bugs in the launcher: whom it starts again, whom it ends, and what it says at the end."""

from __future__ import annotations

from tests.planted.bug import Bug

LAUNCHER: tuple[Bug, ...] = (
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
)
