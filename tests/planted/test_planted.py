"""The table of planted bugs is well made. `python -m tests.planted.run` plants them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil

from tests.house.files import ROOT, definitions
from tests.planted.bug import PROMISES
from tests.planted.bugs import BUGS
from tests.planted.copies import is_of, make_base, run_tests
from tests.planted.run import main


def test_every_row_stands_in_the_code_exactly_once() -> None:
    for bug in BUGS:
        bug.check(ROOT / "recovery")


def test_every_name_is_given_once_and_every_promise_has_at_least_two_rows() -> None:
    assert [name for name, times in Counter(bug.name for bug in BUGS).items() if times > 1] == []
    rows = Counter(bug.breaks for bug in BUGS)
    assert {promise: rows[promise] for promise in {*PROMISES, *rows} if rows[promise] < 2} == {}
    assert rows.keys() == PROMISES.keys()


def test_every_catcher_is_there() -> None:
    catchers = {test.partition("[")[0] for bug in BUGS for test in bug.caught_by}
    files = {test.partition("::")[0] for test in catchers}
    there = files | {f"{file}::{one.name}" for file in files for one in definitions(ROOT / file)}

    assert sorted(catchers - there) == []
    assert [bug.name for bug in BUGS if not bug.caught_by] == []


def test_a_name_that_no_row_has_is_an_error() -> None:
    assert main(["--only", "no row is called so"]) == 1


def test_what_a_mutant_leaves_behind_is_ended_before_its_copy_is_removed(tmp_path: Path) -> None:
    copy = make_base(tmp_path)
    (copy / "tests/house/test_leaves.py").write_text(
        "import subprocess, sys\n\n\ndef test_leaves():\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    )
    verdict = run_tests(copy, ("tests/house/test_leaves.py",))
    assert "is left behind" in verdict.why or verdict.exit_code, verdict
    assert not [process for process in psutil.process_iter() if is_of(copy, process)]
