"""The states of a planned departure and the facts that move it: one table, which drain.py follows, the docs draw and a test walks."""

from __future__ import annotations

from enum import Enum

from recovery.core.ids import ConnectionId, Generation, NodeId, RequestId

RANK_HANDED_OVER = "its rank is handed over"
"""How the reason of a node begins that has left because a standby takes its rank."""


class DrainState(str, Enum):
    """How far a rank's way to a standby is."""

    ASKING = "asking"
    """Every rank was asked where it is."""
    AGREEING = "agreeing"
    """Every rank was asked to save and stop at one step, which none may have passed."""
    SAVING = "saving"
    """All will stop there; the step is waited for, and its checkpoints."""
    HANDING_OVER = "handing over"
    """All ranks hold that step: a rank that departs has left, and a standby is to take the rank."""
    ENDED = "ended"
    """Handed over, or given up."""


class DrainFact(str, Enum):
    """What moves it."""

    POSITIONS_KNOWN = "positions known"
    """Every rank has said where it is."""
    TOO_LATE = "too late"
    """Every rank has answered, and one of them has passed the step: a later one is asked for."""
    ALL_STOP = "all stop"
    """Every rank will stop at the step."""
    COMMITTED = "committed"
    """Every rank holds the step."""
    JOB_STOPS = "job stops"
    """The same where the whole job is to end: every rank waits there for the end of its process, and nobody takes it."""
    TRAINING_ENDS = "training ends"
    """A script has asked for that: every rank stops at the step, and its loop ends there."""
    TAKEN_OVER = "taken over"
    """The next generation is planned: every rank has a process again."""
    GIVEN_UP = "given up"
    """A death, an interrupt, a standby that is gone, a rank that cannot save, or the time is over."""


DRAIN_MOVES: dict[DrainState, dict[DrainFact, DrainState]] = {
    DrainState.ASKING: {
        DrainFact.POSITIONS_KNOWN: DrainState.AGREEING,
        DrainFact.GIVEN_UP: DrainState.ENDED,
    },
    DrainState.AGREEING: {
        DrainFact.TOO_LATE: DrainState.AGREEING,
        DrainFact.ALL_STOP: DrainState.SAVING,
        DrainFact.GIVEN_UP: DrainState.ENDED,
    },
    DrainState.SAVING: {
        DrainFact.COMMITTED: DrainState.HANDING_OVER,
        DrainFact.JOB_STOPS: DrainState.ENDED,
        DrainFact.TRAINING_ENDS: DrainState.ENDED,
        DrainFact.GIVEN_UP: DrainState.ENDED,
    },
    DrainState.HANDING_OVER: {
        DrainFact.TAKEN_OVER: DrainState.ENDED,
        DrainFact.GIVEN_UP: DrainState.ENDED,
    },
    DrainState.ENDED: {},
}
"""All moves. What a state does not list cannot happen in it."""


class Drain:
    """One planned departure, of one node or several, or of all: the end of the job. Nothing of it is stored but its events."""

    def __init__(self, number: int, generation: Generation, reason: str) -> None:
        """Every rank is asked where it is. It does not outlive its generation, but for the hand-over itself; numbers begin with 1 in each process."""
        self.number, self.generation, self.reason = number, generation, reason
        self.state = DrainState.ASKING
        """Changed by `move` alone."""
        self.departing: dict[NodeId, RequestId | None] = {}
        """Whose ranks are to be handed over, each with the request that waits for the end; None: it did not ask itself."""
        self.left_hosts: set[str] = set()
        """No standby of these takes a rank."""
        self.ends_job = False
        """Launchers end all processes behind it: it needs no standby, and nobody takes a rank."""
        self.ends_training = False
        """A script ends the training of all ranks at the step: nothing is saved for it, and nobody departs."""
        self.last_step = 0
        """Behind which a rank's loop has come to its end by itself: the others follow it there, and no further. 0: none has."""
        self.stops: dict[ConnectionId, RequestId] = {}
        """Of the launchers that wait for its end: where, and what they asked."""
        self.wait_ms = self.until_ms = 0
        """How long it may take, and when it has had its time, on the monotonic clock. A rank that waits at the step waits a little longer."""
        self.standbys_due_ms = 0
        """Until then nobody is missed who would take a rank: the process that asked may be one of all that were."""
        self.step = 0
        """At which all are asked to stop; 0: none is chosen yet."""
        self.margin = 1
        """How many steps behind the foremost rank that is. Doubled when it was too short: a step may be shorter than a message's way."""
        self.passed: dict[NodeId, int] = {}
        """By rank's node: what it has passed, of the ranks that have answered about `step`."""
        self.connections: dict[NodeId, ConnectionId | None] = {}
        """By rank's node: where it was asked."""
        self.went_to = 0
        """The newest step that a rank was at when its generation ended; behind `step` it has not waited for the end."""
        self.back_too_soon: set[NodeId] = set()
        """Nodes that have left, and connected again before they could hear so: one that had waited long enough has trained on, or will have."""
        self.late = False
        """Has one of them passed `step`?"""
        self.handed_over = self.saved = self.all_here = False
        """Said of one that ended: a standby has the rank, and no step was lost; every rank has saved `step` and waits there for the end of the job;
        no rank was missing, so that what ends behind the end of the job was ended."""
        self.outcome = ""
        """How it ended, for people; empty before."""

    @property
    def is_open(self) -> bool:
        """May it still be given up as if nothing had been?"""
        return self.state not in (DrainState.HANDING_OVER, DrainState.ENDED)

    def move(self, fact: DrainFact) -> None:
        """Follow the table."""
        moves = DRAIN_MOVES[self.state]
        assert fact in moves, f"a drain that is {self.state.value} knows no move for: {fact.value}"
        self.state = moves[fact]

    def note_stop(self, generation: Generation, step: int) -> None:
        """A rank says at which step of a generation it has stopped."""
        if generation == self.generation:
            self.went_to = max(self.went_to, step)

    def note_back(self, node_id: NodeId) -> None:
        """A node registers that has left for a standby."""
        if self.state is DrainState.HANDING_OVER and node_id in self.departing:
            self.back_too_soon.add(node_id)

    def end(self, fact: DrainFact, outcome: str) -> None:
        """It is over, and this is why."""
        self.move(fact)
        self.outcome = outcome
        self.handed_over, self.saved = fact is DrainFact.TAKEN_OVER, fact is DrainFact.JOB_STOPS
