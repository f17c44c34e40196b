"""small_job, taught to end before its training does: in every way that looks like success from outside."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import small_job
from tests.cluster.small_cluster import SCRIPT

_BEGINS = "# --- how it begins"
_WAYS = '''
WHO = os.environ.get("JOB_WHO", "1")


def _if_chosen(leave: Callable[[], object]) -> Callable[[], None]:
    """One rank leaves, the others train on. 1.2 is the process that comes after that of 1."""
    number = os.environ["MS_NODE_ID"].rpartition("_")[2].partition(".")[0]
    return lambda: None if number != WHO else _do(leave)


def _do(leave: Callable[[], object]) -> None:
    leave()


def _raise_exit() -> None:
    raise SystemExit


def _skip() -> None:
    import pytest

    pytest.skip("not today")


def _exit_in_a_thread() -> None:
    thread = threading.Thread(target=sys.exit, args=(0,))
    thread.start()
    thread.join()


def _exit_in_a_child(leave: Callable[[], object]) -> None:
    if not (pid := os.fork()):
        leave()
    _, status = os.waitpid(pid, 0)
    (HERE / "child_status").write_text(str(os.waitstatus_to_exitcode(status)))


def _exit_in_a_child_of_multiprocessing() -> None:
    child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(0,))
    child.start()
    child.join()
    (HERE / "child_status").write_text(str(child.exitcode))


def _exit_when_asked() -> None:
    """What many scripts do for their container's sake."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))


WAYS = {
    "exit": lambda: sys.exit(0),
    "exit-none": lambda: sys.exit(),
    "exit-3": lambda: sys.exit(3),
    "raise-exit": _raise_exit,
    "quit": lambda: quit(),
    "os-exit": lambda: os._exit(0),
    "skip": _skip,
    "thread": _exit_in_a_thread,
    "fork": lambda: _exit_in_a_child(lambda: sys.exit(0)),
    "fork-os-exit": lambda: _exit_in_a_child(lambda: os._exit(0)),
    "multiprocessing": _exit_in_a_child_of_multiprocessing,
    "on-sigterm": _exit_when_asked,
}
for _name, _way in WAYS.items():
    DEEDS[f"leave-by-{_name}"] = _if_chosen(_way)


'''


def teach(directory: Path, *, more: str = "") -> None:
    """Let the script in `directory` know the deeds `leave-by-...` for the node whose number JOB_WHO names (1).

    Args:
        directory: where a SmallCluster has put its script.
        more: lines to stand behind them, before it begins.
    """
    before, mark, after = Path(small_job.__file__).read_text().partition(_BEGINS)
    assert mark, "small_job begins otherwise now"
    (directory / SCRIPT).write_text(before + _WAYS + more + mark + after)
