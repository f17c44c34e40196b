"""Why a row is as it is, where something is decided by it: the sentences beside it are for people alone."""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    """A cause that a decision asks for. Stores and views hold its value."""

    OTHER = ""
    """None of these; its sentence says which."""
    RUN_FINISHED = "run_finished"
    """A node has left: it did its part to the end."""
    RANK_HANDED_OVER = "rank_handed_over"
    """A node has left: its rank went to a standby as planned."""
    PROCESS_ENDED = "process_ended"
    """A node is lost: its process has ended, and nobody has said how."""
    CONNECTION_LOST = "connection_lost"
    """A node is suspect, or was and is lost: its connection closed, and nobody has said why."""
    NODE_LOST = "node_lost"
    """A generation ended with the loss of a node."""
    REPLICAS_DIFFER = "replicas_differ"
    """A generation ended since ranks that must hold the same did not: none of their memories is gone on from."""
    PROGRAM_RESTARTED = "program_restarted"
    """A generation ended, or had ended, when a survivor started its program again: that explains nothing of why."""
    STORE_REBUILT = "store_rebuilt"
    """The scheduler's store was lost: a job waits for what its workers report, or a generation's row is of what they have reported."""


UNEXPLAINED = frozenset({Cause.PROCESS_ENDED, Cause.CONNECTION_LOST})
"""Of a lost node: its launcher, which waited for its process, may still say how that ended."""
