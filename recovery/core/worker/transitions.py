"""The two states of a worker and all their moves: what its main thread does, and where its connection stands.

They are independent: the connection comes and goes underneath training without the main thread noticing. A fact that moves nothing
in a state is named there too; one that is not named cannot happen in it, and a fault of ours says that it did.
"""

from __future__ import annotations

from enum import Enum


class WorkerState(str, Enum):
    """What the process does, as its main thread sees it."""

    OUTSIDE = "outside"
    """Not admitted yet: it dials, registers, waits out refusals."""
    IDLE = "idle"
    """Admitted; the main thread waits for a plan."""
    TRAINING = "training"
    """The main thread is in the training function of a generation, or has finished it and waits for the other ranks."""
    STOPPING = "stopping"
    """The generation is over; the main thread was interrupted and has not come back yet."""
    LEAVING = "leaving"
    """The process ends: the job is over, its own code raised, it was asked to stop, or it was given up."""


class WorkerFact(str, Enum):
    """What moves the worker's state."""

    ADMITTED = "admitted"
    """The scheduler has admitted this process."""
    PLANNED = "planned"
    """The plan of a generation was given to the main thread."""
    INTERRUPTED = "interrupted"
    """The generation is over for the scheduler; the main thread was asked to stop."""
    STOPPED = "stopped"
    """The main thread has left the training function and can follow a plan."""
    ENDED = "ended"
    """The process is to end."""


WORKER_MOVES: dict[WorkerState, dict[WorkerFact, WorkerState]] = {
    WorkerState.OUTSIDE: {
        WorkerFact.ADMITTED: WorkerState.IDLE,
        WorkerFact.ENDED: WorkerState.LEAVING,
    },
    WorkerState.IDLE: {
        WorkerFact.PLANNED: WorkerState.TRAINING,
        WorkerFact.ENDED: WorkerState.LEAVING,
    },
    WorkerState.TRAINING: {
        WorkerFact.INTERRUPTED: WorkerState.STOPPING,
        WorkerFact.STOPPED: WorkerState.IDLE,
        WorkerFact.ENDED: WorkerState.LEAVING,
    },
    WorkerState.STOPPING: {
        WorkerFact.STOPPED: WorkerState.IDLE,
        WorkerFact.ENDED: WorkerState.LEAVING,
    },
    WorkerState.LEAVING: {},
}
"""All moves of a worker. A worker that stops by itself, because a collective failed under it, goes straight from TRAINING to IDLE."""


WORKER_STAYS: dict[WorkerState, frozenset[WorkerFact]] = {
    WorkerState.OUTSIDE: frozenset(),
    WorkerState.IDLE: frozenset({WorkerFact.ADMITTED}),
    WorkerState.TRAINING: frozenset({WorkerFact.ADMITTED}),
    WorkerState.STOPPING: frozenset({WorkerFact.ADMITTED}),
    WorkerState.LEAVING: frozenset({WorkerFact.ADMITTED, WorkerFact.ENDED}),
}
"""What moves nothing: each reconnect is followed by an admission, and a worker that leaves may be ended by somebody else as well."""


class ConnectionState(str, Enum):
    """Where the connection to the scheduler stands."""

    DISCONNECTED = "disconnected"
    """There is no connection. A dial is under way, or the timer for the next one runs, unless the process has given up."""
    CONNECTED = "connected"
    """The connection stands, and the scheduler has not answered the registration, or its refusal has run out."""
    ADMITTED = "admitted"
    """The scheduler has admitted this process on the current connection."""
    REFUSED = "refused"
    """The scheduler has refused it for now, and the connection still stands: it is answered there when its time has come."""
    WAITING = "waiting"
    """It was refused for now and the connection is closed: it asks again when the refusal has run out."""


class ConnectionFact(str, Enum):
    """What moves the connection's state."""

    OPENED = "opened"
    """A dial succeeded."""
    ADMITTED = "admitted"
    """The scheduler has admitted this process."""
    REFUSED = "refused"
    """The scheduler refuses it and says when to ask again."""
    DIAL_DUE = "dial_due"
    """The time of the next dial, or of the next registration, has come."""
    CLOSED = "closed"
    """The connection has closed, from either side."""


CONNECTION_MOVES: dict[ConnectionState, dict[ConnectionFact, ConnectionState]] = {
    ConnectionState.DISCONNECTED: {
        ConnectionFact.OPENED: ConnectionState.CONNECTED,
    },
    ConnectionState.CONNECTED: {
        ConnectionFact.ADMITTED: ConnectionState.ADMITTED,
        ConnectionFact.REFUSED: ConnectionState.REFUSED,
        ConnectionFact.CLOSED: ConnectionState.DISCONNECTED,
    },
    ConnectionState.ADMITTED: {
        ConnectionFact.CLOSED: ConnectionState.DISCONNECTED,
    },
    ConnectionState.REFUSED: {
        ConnectionFact.ADMITTED: ConnectionState.ADMITTED,
        ConnectionFact.DIAL_DUE: ConnectionState.CONNECTED,
        ConnectionFact.CLOSED: ConnectionState.WAITING,
    },
    ConnectionState.WAITING: {
        ConnectionFact.DIAL_DUE: ConnectionState.DISCONNECTED,
    },
}
"""All moves of the connection. A refusal that runs out while the connection stands is followed by another registration on it."""


CONNECTION_STAYS: dict[ConnectionState, frozenset[ConnectionFact]] = {
    ConnectionState.DISCONNECTED: frozenset({ConnectionFact.DIAL_DUE}),
    ConnectionState.CONNECTED: frozenset({ConnectionFact.DIAL_DUE}),
    ConnectionState.ADMITTED: frozenset(
        {ConnectionFact.ADMITTED, ConnectionFact.REFUSED, ConnectionFact.DIAL_DUE}
    ),
    ConnectionState.REFUSED: frozenset({ConnectionFact.REFUSED}),
    ConnectionState.WAITING: frozenset(),
}
"""What moves nothing: a dial begins without a connection, its timer may be late, and the scheduler may answer a registration again."""


def next_worker_state(state: WorkerState, fact: WorkerFact) -> WorkerState:
    """Look up what a worker becomes. What the tables do not name is a fault of this program."""
    moves = WORKER_MOVES[state]
    assert fact in moves or fact in WORKER_STAYS[state], (
        f"a worker that is {state.value} knows no move for: {fact.value}"
    )
    return moves.get(fact, state)


def next_connection_state(state: ConnectionState, fact: ConnectionFact) -> ConnectionState:
    """Look up what the connection becomes. As `next_worker_state`."""
    moves = CONNECTION_MOVES[state]
    assert fact in moves or fact in CONNECTION_STAYS[state], (
        f"a connection that is {state.value} knows no move for: {fact.value}"
    )
    return moves.get(fact, state)
