"""What the scheduler has reported to this rank: which steps every rank holds, and when this process is to leave."""

from __future__ import annotations

from recovery import clock
from recovery.core.ids import Generation
from recovery.training.data_plane import DataPlane
from recovery.training.disk_schedule import DiskCommits


class KnownCommits(DataPlane):
    """Of one entry of the training function."""

    @property
    def plan_generation(self) -> Generation:
        """The generation as the machines name it."""
        return self._plan.generation

    @property
    def committed_step(self) -> int:
        """Newest global step that every rank holds, as far as the scheduler has reported it to this rank."""
        return self._service.training_control.committed_step

    @property
    def deadline(self) -> float | None:
        """Seconds, 0 or more, until this process is to have ended, where its node, its host or its job was asked to leave; None: it was not.

        All ranks save a step just ahead before that: leave out what takes long (an evaluation), and go on with the steps.
        """
        leave_by_ms = self._service.training_control.stop_point.leave_by_ms
        return None if leave_by_ms is None else max(0, leave_by_ms - clock.monotonic_ms()) / 1000

    @property
    def job_is_over(self) -> bool:
        """Has the job finished, every rank of it?"""
        return self._service.training_control.job_is_over

    @property
    def previous_durable_step(self) -> int:
        """The newest global step but one that lies on every rank's disk; 0 while fewer than two are known in this generation."""
        return self._service.training_control.previous_durable_step

    @property
    def disk_commits(self) -> DiskCommits:
        """What this generation knows of commits on the ranks' disks."""
        control, plan = self._service.training_control, self._plan
        heard = control.disk_committed_ms, control.durable_step
        return DiskCommits(plan.step_on_disks, plan.since_disk_commit_ms, *heard)

    @property
    def pinned_steps(self) -> tuple[int, ...]:
        """Older steps whose files stay as well: what lies on other hosts as a whole, and what is being copied there."""
        return self._service.training_control.pinned_steps

    @property
    def pinned_in_memory(self) -> tuple[int, ...]:
        """The same of what is in memory."""
        return self._service.training_control.pinned_in_memory
