"""What the hosts of a job run is compared where their nodes register."""

from __future__ import annotations

from recovery.core.programs import Program, difference
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def look_at(state: SchedulerState, node: Node, program: Program | None) -> str:
    """How a node's program differs from what the first node of another host runs, where nobody has said so yet; empty: it does not.

    Args:
        state: changed: what was found is said once.
        node: that registers.
        program: what it runs; None: it is of a release that does not say.
    """
    for other in state.nodes.values():
        if program is None or other.program is None or other.record.host == node.record.host:
            continue
        found = difference(program, other.program, node.record.host, other.record.host)
        if not found or (program, other.program) in state.differing:
            return ""
        state.differing |= {(program, other.program), (other.program, program)}
        return found[:1024]
    return ""
