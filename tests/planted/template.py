"""Bugs in the template process: what a fork shares that it must not, and when one must not be made."""

from __future__ import annotations

from tests.planted.bug import Bug

_PICTURE = "tests/launch/test_forked_picture.py"
_TEMPLATE = "tests/launch/test_template.py"
_METHOD = "tests/launch/test_start_method.py"
_AHEAD = "tests/launch/test_forked_ahead.py"

TEMPLATE: tuple[Bug, ...] = (
    Bug(
        "forked workers draw the same random numbers from numpy",
        "I20",
        "launch/forked_child.py",
        "        numpy_random.seed()",
        "        pass",
        (f"{_PICTURE}::test_no_two_forks_draw_the_same_random_numbers",),
    ),
    Bug(
        "forked workers draw the same random numbers from torch",
        "I20",
        "launch/forked_child.py",
        "        torch.default_generator.seed()",
        "        pass",
        (f"{_PICTURE}::test_no_two_forks_draw_the_same_random_numbers",),
    ),
    Bug(
        "forked workers share the key of their connections",
        "I16",
        "launch/forked_child.py",
        "        process.current_process().authkey = os.urandom(32)",
        "        pass",
        (f"{_PICTURE}::test_no_two_forks_draw_the_same_random_numbers",),
    ),
    Bug(
        "a forked worker keeps the template's connection open",
        "I14",
        "launch/forked_child.py",
        "                os.close(int(name))",
        "                pass",
        (f"{_PICTURE}::test_the_whole_picture_is_the_same",),
    ),
    Bug(
        "a forked worker finds the variables of the template",
        "I1",
        "launch/forked_child.py",
        "    os.environ.clear()",
        "    os.environ.copy()",
        (f"{_PICTURE}::test_the_whole_picture_is_the_same",),
    ),
    Bug(
        "a forked worker that replaces itself becomes another node",
        "I1",
        "launch/forked_child.py",
        "    exec_in_place.note_start()",
        "    pass",
        (f"{_PICTURE}::test_the_program_that_replaces_it_starts_as_it_did",),
    ),
    Bug(
        "a fork that nobody knows of runs beside the worker that is spawned instead",
        "I1",
        "launch/forked_child.py",
        "    if not os.read(go, 1):",
        "    if os.read(go, 1) is None:",
        (f"{_TEMPLATE}::test_a_fork_that_its_launcher_does_not_know_of_never_runs",),
    ),
    Bug(
        "a forked worker outlives its launcher",
        "I1",
        "launch/forked_child.py",
        "    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)",
        "    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)",
        (f"{_TEMPLATE}::test_nothing_outlives_its_launcher",),
    ),
    Bug(
        "a template with threads is forked",
        "I14",
        "launch/template_checks.py",
        "        if len(threads) > 1:",
        "        if not threads:",
        (f"{_TEMPLATE}::test_imports_that_act_make_it_unsafe",),
    ),
    Bug(
        "a template whose device cannot be used by its forks is forked",
        "I14",
        "launch/template_checks.py",
        "        if refusing:",
        "        if refusing is None:",
        (f"{_TEMPLATE}::test_imports_that_act_make_it_unsafe",),
    ),
    Bug(
        "forked workers run a program that was changed meanwhile with the modules of before",
        "I20",
        "launch/forked_ahead.py",
        "            if reason:\n",
        "            if reason is None:\n",
        (f"{_TEMPLATE}::test_it_is_stale_when_a_module_has_changed",),
    ),
    Bug(
        "a forked worker has other threads than its variables say",
        "I20",
        "launch/template.py",
        "if name.startswith(_READ_AT_LOAD) and",
        "if not name and",
        (f"{_TEMPLATE}::test_a_variable_that_libraries_read_when_they_are_loaded",),
    ),
    Bug(
        "a template that died is not made again",
        "I14",
        "launch/start_method.py",
        "        if template is not None and template.has_ended():",
        "        if template is None:",
        (f"{_METHOD}::test_a_template_of_no_use_is_made_again_and_workers_are_spawned_meanwhile",),
    ),
    Bug(
        "what is unsafe is spawned although only forks are wanted",
        "I19",
        "launch/start_method.py",
        "elif may_fork and self._method is StartMethod.FORK and not self._was_ready",
        "elif may_fork and self._method is StartMethod.FORK and self._was_ready",
        (f"{_METHOD}::test_what_cannot_be_forked_is_spawned_with_one_line_why",),
    ),
    Bug(
        "a launcher takes the status of a process that somebody else waits for",
        "I14",
        "launch/strays.py",
        "if pid not in own and _session_of(pid) != session",
        "if pid not in own",
        (f"{_METHOD}::test_what_processes_leave_behind_is_reaped_and_ended",),
    ),
    Bug(
        "what a job's processes leave behind outlives the launcher",
        "I14",
        "launch/start_method.py",
        "        await self.strays.end()",
        "        self.strays.reap()",
        (f"{_METHOD}::test_what_processes_leave_behind_is_reaped_and_ended",),
    ),
    Bug(
        "a template goes on with a process that was forked ahead and has ended",
        "I14",
        "launch/template_process.py",
        "if ahead is not None and ahead.has_ended():",
        "if False:",
        (f"{_AHEAD}::test_one_that_somebody_has_ended_is_not_used",),
    ),
    Bug(
        "a process that was forked ahead outlives its template",
        "I14",
        "launch/forked_ahead.py",
        "    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        "",
        (f"{_AHEAD}::test_it_ends_with_its_template",),
    ),
)
