"""A private copy of the package and its tests, and what pytest says of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.planted.bug import Bug
from tests.planted.proof import SAYS
from tests.warm.process import PYTEST, run

ROOT = Path(__file__).parents[2]
LIMIT_S = 100
"""For one run of pytest. The slowest row takes some five seconds on an idle machine."""
SOUND_S = 500
"""For the run of all tests without a bug, which take half a minute on a calm machine. None of them is expected to hang."""
TEST_S = 20.0
"""For one test with a bug, at most."""
_SETTLE_MS = 3_000
"""For what a mutated test leaves behind: it has failed by then."""
_OPTIONS = (
    "-x",
    "-q",
    "--durations=0",
    "--durations-min=0.1",
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
_TOOK = re.compile(r"^ *(?P<seconds>[\d.]+)s (?:setup|call) +(?P<test>\S+)", re.MULTILINE)
_BROKEN = re.compile(
    r"(\w+\.)*(ImportError|ModuleNotFoundError|NameError|SyntaxError|AttributeError|TypeError)\b"
)
"""A mutation that ends so was caught by Python, not by a test: the row is badly made."""
_LATE = re.compile(r"^(INTERNALERROR> .*|ERROR .* - )Failed: Timeout", re.MULTILINE)
"""The limit of a test came before its first line, or behind its last."""


class Verdict(NamedTuple):
    """What one run of pytest said."""

    exit_code: int
    test: str
    """The first that failed; empty when none did."""
    why: str
    """Its error, or what pytest said last when no test failed."""
    took: Mapping[str, float] = {}
    """Seconds of the slow ones, by name."""

    @property
    def passed(self) -> bool:
        """Did every test pass?"""
        return self.exit_code == 0

    @property
    def caught(self) -> bool:
        """Did a test fail by what it asserts? A module that does not import or a test that cannot be collected is no catch."""
        return self.exit_code == 1 and bool(self.test) and _BROKEN.match(self.why) is None


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


def run_tests(
    copy: Path, tests: tuple[str, ...], *, test_s: float = TEST_S, limit_s: float = LIMIT_S
) -> Verdict:
    """Run `tests` on a copy.

    Args:
        copy: of the package and its tests.
        tests: their names.
        test_s: how long each may take.
        limit_s: how long all of them may take.

    Raises:
        RuntimeError: the tests imported another package than the copy's.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COVERAGE", "COV_", "PYTEST"))
    }
    environment |= {"PYTHONPATH": str(copy), "COLUMNS": "400", "HYPOTHESIS_PROFILE": "dev"}
    environment["TESTS_SETTLE_MS"] = str(_SETTLE_MS)
    limit = f"--timeout={test_s:g}"
    command = [sys.executable, "-m", "pytest", *_OPTIONS, limit, "--hypothesis-seed=0", *tests]
    try:
        done = run(command, cwd=copy, env=environment, imports=PYTEST, timeout=limit_s)
    except subprocess.TimeoutExpired:
        # An event loop keeps for itself what a callback raises, so the limit of a test that waits in one can be lost.
        return Verdict(1, tests[0], f"pytest did not end within {limit_s:g} s")
    if _LATE.search(done.stdout + done.stderr) and test_s < SOUND_S:
        # It came while pytest was writing down how the test had ended, or while what the test needs was being made: with another limit it
        # does not.
        return run_tests(copy, tests, test_s=min(3 * test_s, SOUND_S), limit_s=limit_s)
    imported = [line.removeprefix(SAYS) for line in done.stdout.splitlines() if line.startswith(SAYS)]
    if imported and imported != [str(copy / "recovery" / "__init__.py")]:
        message = f"the tests of {copy} imported {imported[0]}"
        raise RuntimeError(message)
    if not imported:
        return Verdict(done.returncode or -1, "", _last_words(done))
    failed = _FAILED.search(done.stdout)
    if failed is None:
        took = {found["test"]: float(found["seconds"]) for found in _TOOK.finditer(done.stdout)}
        return Verdict(done.returncode, "", _last_words(done), took)
    return Verdict(done.returncode, failed["test"], failed["why"] or "")


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last lines that say something."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return " / ".join(lines[-4:])
