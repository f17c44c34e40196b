"""Identifiers. Each is a distinct type for mypy and a plain value at run time."""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)
"""Name of one process of the job (MS_NODE_ID), unique in the cluster, kept over its incarnations."""

Rank = NewType("Rank", int)
"""Position in the world, 0..world_size-1, bound to a node id for the whole run."""

Incarnation = NewType("Incarnation", int)
"""Counts the processes that held a node id: 1, 2, 3, ... Only rises, over scheduler restarts too. The fencing number."""

Generation = NewType("Generation", int)
"""One agreed membership plus one rollback plan: 1, 2, 3, ... within a run. 0 means none yet."""

RunId = NewType("RunId", int)
"""One training run in a recovery path: 1, 2, 3, ... A finished job's path starts the next."""

ConnectionId = NewType("ConnectionId", int)
"""One accepted connection, numbered by the transport, never used twice by one process of the scheduler."""

RequestId = NewType("RequestId", str)
"""Random name of one request, chosen by the sender. A repeat carries the same one and has no second effect."""

ResumeToken = NewType("ResumeToken", str)
"""128-bit secret in hex, given at admission. A process that brings it is the same incarnation coming back."""
