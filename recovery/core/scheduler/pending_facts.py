"""What a stimulus has shown, until `settle` has drawn what follows from it. Between two stimuli nothing lies in `Facts`."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Persist
from recovery.core.policy.next_plan import CrashLoop
from recovery.core.scheduler.node import Node


class Failure(NamedTuple):
    """Why the current generation cannot go on."""

    reason: str
    crash_loop: CrashLoop | None = None
    """The data plane broke, and nobody knows yet why: how generations in a row have ended. None: the cause is known."""
    then: tuple[Persist, ...] = ()
    """What may be written only behind the generation's end."""
    cause: Cause = Cause.OTHER
    about: str = ""
    """The node whose loss it is; empty: of none."""
    details: str = ""
    """Of the event."""


class Arrival(NamedTuple):
    """A node has connected, and is to be brought to where the job stands."""

    node: Node
    register: m.Register


class Report(NamedTuple):
    """A node can follow a plan, and says what it holds."""

    node: Node
    ready: m.Ready


class GivenUp(NamedTuple):
    """A node is not started again."""

    node: Node
    reason: str


class Facts:
    """Handlers add, `settle` takes."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.failures: list[Failure] = []
        self.arrivals: list[Arrival] = []
        self.reports: list[Report] = []
        self.given_up: list[GivenUp] = []

    def fail(
        self,
        reason: str,
        *,
        crash_loop: CrashLoop | None = None,
        then: tuple[Persist, ...] = (),
        cause: Cause = Cause.OTHER,
        about: str = "",
    ) -> None:
        """The current generation cannot go on. Outside a generation it is one more failure of the last one, or nothing."""
        self.failures.append(Failure(reason, crash_loop, then, cause, about))

    @property
    def pending(self) -> bool:
        """Has nobody drawn what follows from something here?"""
        return bool(self.failures or self.arrivals or self.reports or self.given_up)
