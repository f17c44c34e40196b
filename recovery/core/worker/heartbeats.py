"""The worker's heartbeats, and the one whose answer confirms its place after a pause."""

from __future__ import annotations

from recovery.core.messages import Heartbeat, HeartbeatAck
from recovery.core.worker.effects import Send
from recovery.core.worker.stimuli import StepsDone


class Heartbeats:
    """Numbers the heartbeats of one process."""

    def __init__(self) -> None:
        """None was sent yet."""
        self._sent = 0
        """How many were sent: the number of the newest."""
        self._confirming = 0
        """Number of the heartbeat whose answer confirms this incarnation after a pause of the process; 0: none is waited for."""

    @property
    def awaits_confirmation(self) -> bool:
        """Is this process waiting to hear whether its place is still its own?"""
        return self._confirming > 0

    def ask_for_confirmation(self) -> None:
        """The process was paused: the answer to the next heartbeat tells whether its place is still its own."""
        self._confirming = self._sent + 1

    def send(self, newest: StepsDone) -> Send:
        """Send the next one.

        Args:
            newest: how far this rank is.
        """
        self._sent += 1
        if self._confirming:
            self._confirming = self._sent
        return Send(
            Heartbeat(
                sequence=self._sent,
                generation=newest.generation,
                step=newest.step,
                epoch=newest.epoch,
                total_steps=newest.total_steps,
                loss=newest.loss,
            )
        )

    def confirms(self, ack: HeartbeatAck) -> bool:
        """Is this the answer that was waited for? An answer to an older heartbeat says nothing about the time since."""
        if not self._confirming or ack.sequence < self._confirming:
            return False
        self._confirming = 0
        return True

    def check(self) -> None:
        """Assert what is always true of the heartbeats."""
        assert self._confirming <= self._sent + 1, "the heartbeat that confirms is the newest or the next one"
