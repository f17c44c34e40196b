"""What a job's end is told by: how it ended, how far it came, what failures cost, and where its checkpoints and logs are."""

from __future__ import annotations

from pathlib import Path

from recovery.report.rank_progress import RunningProcesses
from recovery.report.status import committed_step
from recovery.report.stored import Stored, read_stored
from recovery.report.timeline import Timeline, read_timeline


def lines_of(recovery_path: Path, log_dir: Path) -> list[str]:
    """Sum the newest run up, in two lines. Errors as of `read_stored`."""
    stored = read_stored(recovery_path)
    timeline, _ = read_timeline(stored)
    return [
        f"job {stored.job.job[:8]}, run {timeline.run}: {_course(stored, timeline)}",
        f"{_last_checkpoint(stored)}; logs: {log_dir}; `recovery timeline {recovery_path}` shows it in time",
    ]


def _course(stored: Stored, timeline: Timeline) -> str:
    # The last that made a step: its script may have ended it before where an earlier one was.
    reached = next((one.reached for one in reversed(timeline.by_generation) if one.reached), 0)
    wall_s = (timeline.end_ms - timeline.begin_ms - timeline.paused_ms) / 1000
    count, resumed = timeline.failures, timeline.resumptions
    recoveries = f"{count} recover{'y' if count == 1 else 'ies'}" if count else "no recovery"
    # A program that knows nothing of recovery tells nothing of its steps.
    training = f" at step {reached}" if reached else ""
    end = stored.training_end
    if end is not None and end.step == reached:
        training += f", where its script stopped it ({end.reason}),"
    goodput = f"; goodput {timeline.goodput_text}" if reached else ""
    if resumed:
        recoveries += f", stopped and started again {'once' if resumed == 1 else f'{resumed} times'}"
    if reached and (count or (resumed and timeline.lost_steps_text != "0")):
        recoveries += f", {timeline.lost_steps_text} {timeline.done_again_text}"
    return f"{RunningProcesses(stored).job_state}{training} after {wall_s:.1f} s{goodput}; {recoveries}"


def _last_checkpoint(stored: Stored) -> str:
    step = committed_step(stored)
    if not step:
        return "no checkpoint that all ranks have"
    of_step = [
        checkpoint
        for checkpoint in stored.checkpoints
        if checkpoint.step == step and checkpoint.run == stored.job.run
    ]
    where = min(of_step, key=lambda checkpoint: checkpoint.rank).path if of_step else "its ranks' directories"
    return f"last checkpoint: step {step}, {where}"
