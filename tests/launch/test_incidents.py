"""One file per failure, with what followed from it."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.cli import torchrun_line
from recovery.launch.console import open_log
from recovery.launch.incidents import Failure, Incidents, last_lines
from recovery.launch.job_spec import FLAGS_BEHIND
from recovery.launch.msrun import flags as msrun_flags

TRACEBACK = ("Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "ValueError: x")


def log_of(directory: Path, name: str, *lines: str, start: int = 1) -> Path:
    path = directory / f"{name}.log"
    with open_log(path, start=start) as log:
        log.write("".join(f"{line}\n" for line in lines).encode())
    return path


def failure(log: Path, *, start: int = 1, rank: int = 0) -> Failure:
    return Failure(
        process=log.stem,
        rank=rank,
        start=start,
        status="exit code 1",
        wall="w",
        consequence="c",
        log=str(log),
    )


def note(incidents: Incidents, of: Failure, *, begun_ms: int, ended_ms: int, **how: bool) -> Path:
    lines = last_lines(Path(of.log))
    return incidents.note(of, lines, begun_ms=begun_ms, ended_ms=ended_ms, **how)


def test_logs_and_incidents_are_their_owners_and_are_written_through_no_link(tmp_path: Path) -> None:
    log = log_of(tmp_path, "worker_1", *TRACEBACK)
    of_somebody = tmp_path / "of_somebody"
    of_somebody.write_text("kept")
    (tmp_path / "incident-1.part").symlink_to(of_somebody)
    kept = note(Incidents(tmp_path), failure(log), begun_ms=0, ended_ms=10)

    assert {stat.S_IMODE(path.lstat().st_mode) for path in (log, kept)} == {0o600}
    assert of_somebody.read_text() == "kept"
    assert "ValueError: x" in kept.read_text()


def test_an_incident_that_cannot_be_written_leaves_no_empty_and_no_half_file(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from tests.launch import test_incidents as t;"
        "log = t.log_of(Path(sys.argv[1]) / 'logs', 'worker_1', *['x' * 90] * 100); kept = t.Incidents(Path(sys.argv[1]));"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)); t.note(kept, t.failure(log), begun_ms=0, ended_ms=10)"
    )
    root = Path(__file__).parents[2]
    line = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True, timeout=60)
    assert "could not be written (File too large" in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_failure_is_kept_with_its_last_lines(tmp_path: Path) -> None:
    log = log_of(tmp_path, "worker_1", "step 1", *TRACEBACK, "a line behind it")
    kept = note(Incidents(tmp_path), failure(log, rank=1), begun_ms=0, ended_ms=10)

    assert kept == tmp_path / "incident-1.json"
    found = json.loads(kept.read_text())
    assert (found["first"]["process"], found["first"]["rank"]) == ("worker_1", 1)
    assert tuple(found["traceback"]) == TRACEBACK
    assert found["last_lines"][0] == "step 1"
    assert found["followed"] == []


@pytest.mark.parametrize(
    ("command", "given", "says"),
    [
        ("run", torchrun_line.FLAGS, "MS_TOPO_TIMEOUT is set by --rdzv-conf=timeout=SECONDS here"),
        ("msrun", msrun_flags.FLAGS, "MS_TOPO_TIMEOUT is set by --cluster_time_out here"),
    ],
)
def test_a_cause_that_names_a_variable_names_the_flag_that_sets_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    given: dict[str, object],
    says: str,
) -> None:
    flags = FLAGS_BEHIND[command]
    log = tmp_path / "worker_0.log"
    log.write_text("=== worker_0 start 1 now ===\n1 of 2 workers are here after 5 s (MS_TOPO_TIMEOUT)\n")
    incidents = Incidents(tmp_path)
    note(incidents, failure(log), begun_ms=0, ended_ms=100)

    incidents.show_cause(flags)

    printed = capsys.readouterr()
    assert [line.strip() for line in (printed.out + printed.err).splitlines()].count(says) == 1
    assert "MS_WORKER_NUM" not in printed.out + printed.err
    named = {flag.replace("-", "_") for text in flags.values() for flag in re.findall(r"--([\w-]+)", text)}
    assert named <= given.keys()


def test_only_the_newest_start_and_the_newest_traceback_count(tmp_path: Path) -> None:
    log_of(tmp_path, "worker_1", *TRACEBACK, "the first start")
    log = log_of(
        tmp_path, "worker_1", "Traceback (most recent call last):", "  x", "KeyError: 1", *TRACEBACK, start=2
    )
    incidents = Incidents(tmp_path)
    note(incidents, failure(log, start=2), begun_ms=0, ended_ms=10)
    assert incidents.newest is not None
    assert incidents.newest.traceback == TRACEBACK
    assert "the first start" not in incidents.newest.last_lines


def test_what_ran_when_another_fell_and_fails_soon_follows_from_it(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    first, second = log_of(tmp_path, "worker_1", *TRACEBACK), log_of(tmp_path, "worker_0", "lost a peer")
    kept = note(incidents, failure(first), begun_ms=0, ended_ms=10_000)

    assert note(incidents, failure(second), begun_ms=0, ended_ms=12_000) == kept
    found = json.loads(kept.read_text())
    assert [one["process"] for one in found["followed"]] == ["worker_0"]
    assert found["first"]["process"] == "worker_1"
    assert not list(tmp_path.glob("*.part"))


def test_a_survivor_that_says_why_it_ends_is_the_reason_and_not_the_death_before_it(tmp_path: Path) -> None:
    """Killed, started again; then the survivor's checkpoint is refused (44) on every rank, and the job fails for that."""
    incidents = Incidents(tmp_path)
    killed, refused, other = (log_of(tmp_path, f"worker_{number}", "x") for number in range(3))
    note(incidents, failure(killed), begun_ms=0, ended_ms=10_000)
    note(incidents, failure(refused), begun_ms=0, ended_ms=12_000, says_why=True)
    note(incidents, failure(other), begun_ms=0, ended_ms=12_100, says_why=True)
    assert incidents.newest is not None
    assert incidents.newest.first.process == "worker_1"
    assert [one.process for one in incidents.newest.followed] == ["worker_2"]


def test_a_later_or_a_younger_failure_is_one_of_its_own(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    log = log_of(tmp_path, "worker_1", "x")
    note(incidents, failure(log), begun_ms=0, ended_ms=10_000)
    # It began after the first had failed.
    note(incidents, failure(log), begun_ms=11_000, ended_ms=12_000)
    # This is too long after.
    note(incidents, failure(log), begun_ms=0, ended_ms=60_000)
    assert sorted(path.name for path in tmp_path.glob("incident-*")) == [
        "incident-1.json",
        "incident-2.json",
        "incident-3.json",
    ]


def test_the_end_of_a_process_that_the_job_does_without_is_the_reason_of_nothing(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    standby, worker = log_of(tmp_path, "standby_0", "x"), log_of(tmp_path, "worker_0", *TRACEBACK)
    kept = note(incidents, failure(standby), begun_ms=0, ended_ms=10_000, job_goes_on=True)
    assert json.loads(kept.read_text())["first"]["process"] == "standby_0"
    assert [incidents.newest] == [None]

    other = note(incidents, failure(worker), begun_ms=0, ended_ms=12_000)
    assert other != kept
    assert incidents.newest is not None
    assert incidents.newest.first.process == "worker_0"

    note(incidents, failure(standby), begun_ms=13_000, ended_ms=60_000, job_goes_on=True)
    assert incidents.newest.first.process == "worker_0"


def test_numbers_go_on_behind_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "incident-1.json").write_text("somebody else's")
    kept = note(Incidents(tmp_path), failure(log_of(tmp_path, "worker_1", "x")), begun_ms=0, ended_ms=1)
    assert kept.name == "incident-2.json"
    assert (tmp_path / "incident-1.json").read_text() == "somebody else's"


def test_a_last_line_that_comes_again_is_noticed(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    log = log_of(tmp_path, "worker_1", *TRACEBACK)
    assert not incidents.repeats("worker_1", last_lines(log))
    assert not incidents.repeats("worker_2", last_lines(log))
    log_of(tmp_path, "worker_1", "another step", *TRACEBACK, start=2)
    assert incidents.repeats("worker_1", last_lines(log))
    log_of(tmp_path, "worker_1", "KeyError: 2", start=3)
    assert not incidents.repeats("worker_1", last_lines(log))


def test_a_silent_death_repeats_nothing(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    assert not incidents.repeats("worker_1", last_lines(log_of(tmp_path, "worker_1")))
    assert not incidents.repeats("worker_1", last_lines(log_of(tmp_path, "worker_1", start=2)))


LEAKS = (
    "nanobind: leaked 9 types!",
    *(f' - leaked type "torch._C.{number}"' for number in range(40)),
    " - ... skipped remainder",
    "nanobind: this is likely caused by a reference counting issue in the binding code.",
    "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
)
"""What torch 2.15 prints at the end of a process, behind the reason."""


def test_the_traceback_is_found_before_what_a_library_prints_behind_it(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    note(incidents, failure(log_of(tmp_path, "worker_1", *TRACEBACK, *LEAKS)), begun_ms=0, ended_ms=10)
    assert incidents.newest is not None
    assert incidents.newest.traceback == TRACEBACK


@pytest.mark.parametrize(
    "reasons",
    [
        (TRACEBACK, (*TRACEBACK[:-1], "OSError: y")),
        (("ERROR event=exit code=74 NODE_ALIVE",), ("ERROR event=exit code=76 FENCED",)),
    ],
    ids=["tracebacks", "lines of ours"],
)
def test_two_reasons_with_the_same_lines_behind_them_are_two(
    tmp_path: Path, reasons: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    incidents = Incidents(tmp_path)
    first, second = reasons
    assert not incidents.repeats("worker_1", last_lines(log_of(tmp_path, "worker_1", *first, *LEAKS)))
    assert not incidents.repeats(
        "worker_1", last_lines(log_of(tmp_path, "worker_1", *second, *LEAKS, start=2))
    )
    assert incidents.repeats("worker_1", last_lines(log_of(tmp_path, "worker_1", *second, *LEAKS, start=3)))


def test_a_handled_error_long_before_the_end_is_not_the_reason(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    steps = tuple(f"step {number}" for number in range(100))
    first = log_of(tmp_path, "worker_1", *TRACEBACK, *steps, "one reason")
    assert not incidents.repeats("worker_1", last_lines(first))
    second = log_of(tmp_path, "worker_1", *TRACEBACK, *steps, "another reason", start=2)
    assert not incidents.repeats("worker_1", last_lines(second))
    note(incidents, failure(second, start=2), begun_ms=0, ended_ms=10)
    assert incidents.newest is not None
    assert incidents.newest.traceback == ()
    assert incidents.newest.shown_lines[-1] == "another reason"


def test_a_start_is_marked_on_a_line_of_its_own_behind_half_a_line(tmp_path: Path) -> None:
    log = log_of(tmp_path, "worker_1", "step 1")
    with log.open("ab") as stream:
        stream.write(b"half a li")
    log_of(tmp_path, "worker_1", "step 2", start=2)

    lines = log.read_text().splitlines()
    assert lines[2] == "half a li"
    assert lines[3].startswith("=== worker_1 start 2 ")


CAUSED = "The above exception was the direct cause of the following exception:"
GROUP = (
    "  + Exception Group Traceback (most recent call last):",
    "  | ExceptionGroup: two (2 sub-exceptions)",
)


@pytest.mark.parametrize(
    ("first", "second", "repeats"),
    [
        (TRACEBACK, TRACEBACK, True),
        (("step 4", "bad input"), ("step 5", "bad input"), True),
        (TRACEBACK, (TRACEBACK[0], '  File "b.py", line 9, in <module>', TRACEBACK[2]), False),
        ((*TRACEBACK, "", CAUSED, "", *TRACEBACK), (*GROUP, "", CAUSED, "", *TRACEBACK), False),
        (
            (*GROUP, "    | ValueError: 1", "    +------------------------------------"),
            (*GROUP, "    | ValueError: 2", "    +------------------------------------"),
            False,
        ),
        (
            (TRACEBACK[0], *(f"  {depth}" for depth in range(90)), TRACEBACK[2]),
            (TRACEBACK[0], "  0", *(f"  {depth}" for depth in range(90)), TRACEBACK[2]),
            False,
        ),
    ],
)
def test_two_failures_are_the_same_where_their_whole_tracebacks_are(
    tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...], *, repeats: bool
) -> None:
    incidents = Incidents(tmp_path)
    assert not incidents.repeats("worker_0", last_lines(log_of(tmp_path, "worker_0", *first)))
    assert (
        incidents.repeats("worker_0", last_lines(log_of(tmp_path, "worker_0", *second, start=2))) is repeats
    )
