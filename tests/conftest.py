"""What every test shares: the profiles of hypothesis, and a last check that nothing was left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import psutil
import pytest
from hypothesis import settings

from recovery import clock
from tests import load
from tests.stories import STORIES
from tests.warm import process

# The gate draws nothing: the same examples at each run. "all" draws new ones, and prints how to repeat what fails.
settings.register_profile(
    "gate", derandomize=True, max_examples=50, deadline=None, database=None, print_blob=True
)
settings.register_profile("all", max_examples=500, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

if threading.current_thread() is threading.main_thread():
    # A shell starts what runs in the background deaf to an interrupt and to SIGQUIT, nohup what it starts to a hangup, and every process of
    # a test would be so too: a handler of this process is the default again in its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)

_SLOW_HANGS_S = 3_600
"""What a slow test may take before it counts as hanging; for the others pyproject.toml says it."""
_SETTLE_MS = int(os.environ.get("TESTS_SETTLE_MS", "60000"))
"""How long children and threads that were asked to end may take. Far more than a busy machine needs."""


def _left_behind(listening_before: frozenset[int]) -> list[str]:
    """Name what this process still holds that a test should have ended."""
    me = psutil.Process()
    children = [
        f"child process {child.pid} {command}"
        for child in me.children(recursive=True)
        if _runs(child) and not _is_pythons_own(command := _command_line(child))
    ]
    ports = [f"listening port {port}" for port in sorted(_listening_ports() - listening_before)]
    threads = [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    return children + ports + threads


def _command_line(process: psutil.Process) -> str:
    """What a process runs, as far as one may see it."""
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(already gone)"


def _is_pythons_own(command: str) -> bool:
    """True for what multiprocessing keeps until the interpreter ends."""
    return "multiprocessing.resource_tracker" in command


def _runs(process: psutil.Process) -> bool:
    """False for what has ended: an orphan that came to us in the moment of a fork (tests/warm) has nobody who waits for it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _listening_ports() -> frozenset[int]:
    """Local ports that this process listens on."""
    return frozenset(
        connection.laddr.port
        for connection in psutil.Process().net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    )


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail the session when a child process, a listening port or a thread outlives its test."""
    before = _listening_ports()
    yield
    process.stop_servers()
    deadline_ms = clock.monotonic_ms() + _SETTLE_MS
    pause = threading.Event()
    while (left := _left_behind(before)) and clock.monotonic_ms() < deadline_ms:
        pause.wait(0.05)
    assert not left, f"left behind by a test: {', '.join(left)}"


_begun = load.Ticks.now()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Close a run that failed with how busy the machine was, and keep the names for the last lines of `make test`."""
    if hasattr(terminalreporter.config, "workerinput"):
        # A worker of xdist has a report of its own; the one that all of them send theirs to says it.
        return
    if failed := [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]:
        load.keep_failed([report.nodeid for report in failed])
        for line in load.lines(_begun):
            terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the stories of the gate, and give slow tests their time."""
    for item in items:
        if item.nodeid in STORIES:
            item.add_marker(pytest.mark.story)
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(_SLOW_HANGS_S))


@pytest.fixture(autouse=True)
def starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes of tests are forked from one that has the imports, except those of tests that need a true start."""
    with process.cold() if request.node.get_closest_marker("cold_start") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    """What a test sets in this process's environment, or a world that it forms, no later test's processes find there."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
