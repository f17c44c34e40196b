"""What a rank's own work on a batch takes is told without its waits for others, and without what a script does between passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import clock
from recovery.core.pace import HeldUp, Pace
from recovery.worker import held_up, processor_wait
from recovery.worker.batch_times import BatchTimes
from recovery.worker.held_up import Watch


class Now:
    def __init__(self) -> None:
        self.us = 1_000_000


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    moment = Now()
    monkeypatch.setattr(clock, "monotonic_us", lambda: moment.us)
    monkeypatch.setattr(clock, "monotonic_ms", lambda: moment.us // 1_000)
    # This machine's own load is none of it.
    monkeypatch.setattr(Watch, "look", lambda *_: {})
    return moment


def work(times: BatchTimes, now: Now, *, data: int, compute: int, waits: int = 0) -> None:
    """One batch: drawn, its gradients computed, the others waited for."""
    times.wants()
    now.us += data
    times.drawn()
    now.us += compute
    times.has_gradients()
    now.us += waits


def told(times: BatchTimes) -> tuple[int, int, int] | None:
    pace = times.pace(0)
    return None if pace is None else (pace.batches, pace.data_us, pace.compute_us)


def test_its_own_work_is_told_of_a_hundred_batches(now: Now) -> None:
    times = BatchTimes()
    for _ in range(100):
        work(times, now, data=1_000, compute=7_000, waits=90_000)
        assert told(times) is None
    times.wants()
    assert told(times) == (100, 1_000, 7_000)


def test_a_moment_changes_nothing_and_what_lasts_does(now: Now) -> None:
    times = BatchTimes()
    for batch in range(100):
        work(times, now, data=1_000, compute=900_000 if batch % 3 == 0 else 7_000)
    for _ in range(51):
        work(times, now, data=1_000, compute=20_000)
    times.wants()
    assert told(times) == (151, 1_000, 20_000)


def test_what_a_second_models_gradients_take_is_no_more_its_own(now: Now) -> None:
    times = BatchTimes()
    for _ in range(101):
        work(times, now, data=0, compute=5_000, waits=50_000)
        times.has_gradients()
    assert told(times) == (100, 0, 5_000)


def test_between_two_passes_nothing_is_a_batch(now: Now) -> None:
    times = BatchTimes()
    for _ in range(51):
        for _ in range(3):
            work(times, now, data=1_000, compute=2_000)
        times.wants()
        times.passed()
        # An evaluation, and the first batch of the next pass: its processes begin.
        now.us += 10**9
        times.drawn()
        times.has_gradients()
    assert told(times) == (153, 1_000, 2_000)


def test_a_loop_without_gradients_tells_of_its_data(now: Now) -> None:
    times = BatchTimes()
    for _ in range(101):
        times.wants()
        now.us += 3_000
        times.drawn()
    assert told(times) == (100, 3_000, 0)


def test_another_generation_begins_anew(now: Now) -> None:
    times = BatchTimes()
    for _ in range(101):
        work(times, now, data=1, compute=1)
    times.begin()
    times.has_gradients()
    assert told(times) is None


class Kernel:
    """What it would tell."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now_ms, self.starved_ms = root, 0, 0
        self.group, self.throttled_us, self.stolen, self.ticks = root / "job" / "worker", 0, 0, 0
        self.group.mkdir(parents=True)
        monkeypatch.setattr(clock, "monotonic_ms", lambda: self.now_ms)
        monkeypatch.setattr(processor_wait, "waited_ms", lambda _: self.starved_ms)
        monkeypatch.setattr(held_up, "CONTROL_GROUPS", root)
        monkeypatch.setattr(held_up, "PROCESSES", root)
        (root / "self").mkdir()
        self.belongs_to("0::/job/worker\n")
        self.tell()

    def belongs_to(self, lines: str) -> None:
        (self.root / "self" / "cgroup").write_text(lines)

    def tell(self, *, swapped_kb: int = 0) -> None:
        (self.group / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 0\n")
        (self.group.parent / "cpu.stat").write_text(f"usage_usec 5\nthrottled_usec {self.throttled_us}\n")
        (self.root / "stat").write_text(f"cpu  {self.ticks} 0 0 0 0 0 0 {self.stolen} 0 0\ncpu0 1\n")
        (self.root / "self" / "status").write_text(
            f"Name:\tx\nVmRSS:\t  900 kB\nVmSwap:\t  {swapped_kb} kB\n"
        )


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def test_what_the_kernel_says_is_of_the_time_between_two_looks(kernel: Kernel) -> None:
    watch = Watch()
    assert watch.look(1) == {}
    kernel.now_ms, kernel.starved_ms, kernel.throttled_us = 10_000, 2_500, 4_000_000
    kernel.ticks, kernel.stolen = 90, 10
    kernel.tell(swapped_kb=100)
    wanted = {HeldUp.STARVED: 250, HeldUp.THROTTLED: 400, HeldUp.STOLEN: 100, HeldUp.SWAPPED: 100}
    assert watch.look(1) == wanted

    kernel.now_ms, kernel.starved_ms = 19_999, 9_000
    kernel.tell()
    assert watch.look(1) == wanted, "too soon to look again"
    kernel.now_ms = 20_000
    assert watch.look(1) == {HeldUp.STARVED: 650}


@pytest.mark.parametrize("lines", ["", "4:cpu:/job\n", "0::/gone\n", "0::/../outside\n"])
def test_a_kernel_that_tells_nothing_of_a_group_is_no_fault(kernel: Kernel, lines: str) -> None:
    kernel.belongs_to(lines)
    watch = Watch()
    watch.look(1)
    kernel.now_ms, kernel.throttled_us = 10_000, 4_000_000
    kernel.tell()
    assert watch.look(1) == {}


def test_a_kernel_that_tells_nothing_at_all_is_no_fault(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_up, "PROCESSES", kernel.root / "nowhere")
    watch = Watch()
    watch.look(1)
    kernel.now_ms = 10_000
    assert watch.look(1) == {}


def test_this_kernel_is_asked_without_a_fault() -> None:
    assert Watch().look(1) == {}
    assert Pace(batches=1, data_us=1).held_up == {}
