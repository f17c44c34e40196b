"""The messages of a barrier, the stop of all ranks at one step: a rank is handed over to a standby, or the job or its training ends there."""

from __future__ import annotations

from typing import Annotated, Union

import msgspec

from recovery.core.message_fields import RANKS_MAX, Count, GenerationNumber, NodeName, RequestName, ShortText


class Depart(msgspec.Struct, frozen=True, kw_only=True, tag="depart"):
    """The node is asked to end, and would hand its rank over first: `HandedOver` or `NotHandedOver` follows."""

    request_id: RequestName
    reason: ShortText


class StopTraining(msgspec.Struct, frozen=True, kw_only=True, tag="stop_training"):
    """The rank's script has called `session.stop()`: training is to end at one step of all ranks. It waits at `step`; `SaveAt` follows.

    Said again after each reconnect, until `TrainingEnds` or the end of the generation answers it.
    """

    generation: GenerationNumber
    step: Count
    """At whose end it was called: the first at which all may end."""
    reason: ShortText
    """The script's own words; empty: it gave none."""


class Position(msgspec.Struct, frozen=True, kw_only=True, tag="position"):
    """The answer to `SaveAt`: where the rank is, and whether it will stop at that step."""

    drain: Count
    step: Count
    """Of the question."""
    passed: Count
    """The main thread has left this step behind it: it is in the next one."""
    stops: bool
    """It saves at that step and waits there. False: it is too late, or was only asked where it is."""
    obstacle: ShortText = ""
    """Not empty: why this rank can save at no step that is asked for."""
    is_over: bool = False
    """Its loop has come to its end, and it stops at no step any more, whatever `stops` says."""


class SaveAt(msgspec.Struct, frozen=True, kw_only=True, tag="save_at"):
    """A rank is to be handed over, or the job to end: every rank saves at this step, stops there and waits. `Position` is the answer.

    It replaces an earlier one of the same barrier: a rank that waits at that step goes on to this one.
    """

    drain: Count
    generation: GenerationNumber
    step: Count
    """0: the rank is only asked where it is."""
    wait_ms: Count = 0
    """How long the scheduler lets the barrier take: a rank that has stopped waits no longer. 0: a release before this one asks, which does not say so."""
    ends_training: bool = False
    """A script has called `session.stop()`: nothing is saved for it, and the rank waits there until `TrainingEnds` or the end of the generation."""
    leaves: bool = False
    """This process is to end behind it, within `wait_ms`: its node, its host or its job was asked to."""


class TrainingEnds(msgspec.Struct, frozen=True, kw_only=True, tag="training_ends"):
    """Every rank stops at this step: training ends there, as behind its last epoch. Said again after a reconnect."""

    generation: GenerationNumber
    step: Count
    reason: ShortText
    """Which rank has asked, and its script's own words."""


class GoOn(msgspec.Struct, frozen=True, kw_only=True, tag="go_on"):
    """The barrier was given up: a rank that waits at a step of it trains on."""

    drain: Count


class HandedOver(msgspec.Struct, frozen=True, kw_only=True, tag="handed_over"):
    """Every rank holds a step at which this node may go: it has left, a standby takes its rank, and it ends now."""

    reason: ShortText


class NotHandedOver(msgspec.Struct, frozen=True, kw_only=True, tag="not_handed_over"):
    """The answer to `Depart` where the rank stays the node's own: it leaves without more ado."""

    request_id: RequestName
    reason: ShortText
    job_ends: bool = False
    """Its launcher ends the whole job: nobody was to take the rank."""


class StopJob(msgspec.Struct, frozen=True, kw_only=True, tag="stop_job"):
    """A launcher is asked to end the job, or its part of it: every rank is to save a step first, and to wait there for its end. `JobSaved` follows.

    It is no node itself: it sends this on a connection of its own, and again to keep that open.
    """

    request_id: RequestName
    reason: ShortText
    within_ms: Count
    """How long the save may take; then its processes are ended all the same."""
    nodes: Annotated[tuple[NodeName, ...], msgspec.Meta(max_length=RANKS_MAX)] = ()
    """Those that leave, whose host is to be taken away: standbys take their ranks, and the job goes on. Empty: all of it ends."""


class JobSaved(msgspec.Struct, frozen=True, kw_only=True, tag="job_saved"):
    """The answer to `StopJob`: the launcher ends its processes now."""

    request_id: RequestName
    step: Count
    """The newest step that lies on all ranks' disks; 0: none."""
    obstacle: ShortText = ""
    """Why no rank waits behind that step; empty: every rank has saved it, and waits there, or others have the ranks of the nodes that leave."""


BarrierFromNode = Union[Depart, StopTraining, Position]
BarrierFromScheduler = Union[SaveAt, TrainingEnds, GoOn, HandedOver, NotHandedOver, JobSaved]
