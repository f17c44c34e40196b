"""A private copy of the package and its tests, and what pytest says of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.planted.bug import Bug
from tests.planted.proof import SAYS
from tests.warm.process import PYTEST, run

ROOT = Path(__file__).parents[2]
TEST_S = 120.0
"""For one test with a bug: it ends what hangs, which has noticed the bug then. A sound test takes seconds, on a loaded machine too."""
LIMIT_S = 1_200.0
"""For one run of pytest with a bug, which ends itself."""
SOUND_TEST_S = 900.0
"""For one test without a bug, and none hangs: it measures nothing."""
SOUND_S = 7_200.0
"""For the run of all tests without a bug."""
_SETTLE_MS = 3_000
"""For what a mutated test leaves behind: it has failed by then."""
_SOUND_SETTLE_MS = 300_000
_OPTIONS = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
    "-p",
    "tests.planted.proof",
    "-r",
    "fE",
    # hypothesis is imported before pytest here, so pytest does not rewrite its asserts: none of ours are in it.
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
_FAILED = re.compile(r"^FAILED (?P<test>.+?)(?: - (?P<why>.*))?$", re.MULTILINE)
_BROKEN = re.compile(
    r"(\w+\.)*(ImportError|ModuleNotFoundError|NameError|SyntaxError|AttributeError|TypeError)\b"
)
"""A mutation that ends so was caught by Python, not by a test: the row is badly made."""
_HUNG = re.compile(r"Failed: Timeout\b")
_LATE = re.compile(r"^INTERNALERROR> .*Failed: Timeout", re.MULTILINE)


class Verdict(NamedTuple):
    """What one run of pytest said."""

    exit_code: int
    test: str
    """The first that failed; empty when none did."""
    why: str
    """Its error, or what pytest said last when no test failed."""

    @property
    def passed(self) -> bool:
        """Did every test pass?"""
        return self.exit_code == 0

    @property
    def caught(self) -> bool:
        """Did a test fail by what it asserts? A module that does not import or a test that cannot be collected is no catch."""
        return self.exit_code == 1 and bool(self.test) and _BROKEN.match(self.why) is None

    @property
    def hung(self) -> bool:
        """Was the test ended by its limit? It waited for what the bug keeps from coming."""
        return _HUNG.match(self.why) is not None


def make_base(place: Path) -> Path:
    """Copy the working tree's package and tests into `place / base`, unmutated."""
    base = place / "base"
    for package in ("recovery", "tests"):
        shutil.copytree(ROOT / package, base / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", base)
    return base


def make_mutant(base: Path, bug: Bug, place: Path) -> Path:
    """Copy `base` with what Python has compiled there, and plant `bug` in the copy."""
    # Whoever compiles or plants makes a new file, so the base keeps its own.
    copy = shutil.copytree(base, place / "mutant", symlinks=True, copy_function=os.link)
    source = copy / "recovery" / bug.file
    source.unlink()
    shutil.copy2(base / "recovery" / bug.file, source)
    bug.plant(copy / "recovery")
    for compiled in source.parent.glob(f"__pycache__/{source.stem}.*"):
        compiled.unlink()
    return copy


def run_sound(base: Path, tests: tuple[str, ...]) -> Verdict:
    """Run `tests` without a bug, with limits that none reaches. Raises as `run_tests`."""
    return run_tests(base, tests, test_s=SOUND_TEST_S, limit_s=SOUND_S, settle_ms=_SOUND_SETTLE_MS)


def run_tests(
    copy: Path,
    tests: tuple[str, ...],
    *,
    test_s: float = TEST_S,
    limit_s: float = LIMIT_S,
    settle_ms: int = _SETTLE_MS,
) -> Verdict:
    """Run `tests` on a copy.

    Args:
        copy: of the package and its tests.
        tests: their names.
        test_s: how long each may take.
        limit_s: how long all of them may take.
        settle_ms: how long what they have started may take to end behind the last one.

    Raises:
        RuntimeError: the tests imported another package than the copy's.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COVERAGE", "COV_", "PYTEST"))
    }
    environment |= {"PYTHONPATH": str(copy), "COLUMNS": "400", "HYPOTHESIS_PROFILE": "gate"}
    environment["TESTS_SETTLE_MS"] = str(settle_ms)
    limit = f"--timeout={test_s:g}"
    # A directory of its own: in the common one runs that begin and end at once clear away each other's.
    place = f"--basetemp={copy / 'tmp'}"
    command = [sys.executable, "-m", "pytest", *_OPTIONS, limit, place, "--hypothesis-seed=0", *tests]
    try:
        done = run(command, cwd=copy, env=environment, imports=PYTEST, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Verdict(-1, "", f"pytest did not end within {limit_s:g} s")
    finally:
        _end_what_is_left(copy)
    if _LATE.search(done.stdout + done.stderr) and test_s < SOUND_TEST_S:
        # The limit came while pytest was writing down how the test had ended: with another one it does not.
        longer_s = min(3 * test_s, SOUND_TEST_S)
        return run_tests(copy, tests, test_s=longer_s, limit_s=limit_s, settle_ms=settle_ms)
    imported = [line.removeprefix(SAYS) for line in done.stdout.splitlines() if line.startswith(SAYS)]
    if imported and imported != [str(copy / "recovery" / "__init__.py")]:
        message = f"the tests of {copy} imported {imported[0]}"
        raise RuntimeError(message)
    if not imported:
        return Verdict(done.returncode or -1, "", _last_words(done))
    failed = _FAILED.search(done.stdout)
    if failed is None:
        return Verdict(done.returncode, "", _last_words(done))
    return Verdict(done.returncode, failed["test"], failed["why"] or "")


def _end_what_is_left(copy: Path) -> None:
    """Kill what a mutant has left behind, that no test ends any more: it would write into the copy while that is removed."""
    left = [process for process in psutil.process_iter() if is_of(copy, process)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left)


def is_of(copy: Path, process: psutil.Process) -> bool:
    """Does a process run with the copy's package? The pytest of that run has ended."""
    try:
        return process.environ().get("PYTHONPATH") == str(copy)
    except (psutil.Error, OSError):
        return False


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last lines that say something."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return " / ".join(lines[-4:])
