"""Every duration and limit that the core obeys, as one value. Built by `recovery.config`, never read from the environment here."""

from __future__ import annotations

import msgspec

DIAL_MS = 5_000
"""How long one dial may take: name, TCP, handshake."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are integer milliseconds; `None` means for ever."""

    worker_count: int
    """Number of workers, which is the world size (MS_WORKER_NUM)."""
    server_count: int = 0
    """Number of parameter servers (MS_SERVER_NUM). They register and keep ranks of their own, outside the world."""
    recovery_enabled: bool = True
    """False: nothing is persisted and the first loss ends the job (MS_ENABLE_RECOVERY)."""
    lease_ms: int = 30_000
    """How long a silent node is believed alive (MS_NODE_TIMEOUT)."""
    rejoin_window_ms: int = 30_000
    """How long a lost node id is refused, counted from when it was last heard (MS_REJOIN_WINDOW)."""
    reconnect_grace_ms: int = 500
    """How long a node whose connection closed may come back with its token as if nothing happened (MS_RECONNECT_GRACE)."""
    topology_timeout_ms: int | None = 1_800_000
    """How long all ranks are waited for, when forming and after a loss (MS_TOPO_TIMEOUT)."""
    abort_timeout_ms: int = 10_000
    """How long an interrupted worker's main thread may take to come back before the process replaces itself (MS_ABORT_TIMEOUT)."""
    step_timeout_ms: int | None = None
    """How long a rank may take for a step before its generation is ended; 0: for ever; None: as is learned of each part of a step (MS_STEP_TIMEOUT)."""
    replaces_hung: bool = True
    """With a limit that is learned. True: a rank that hangs is replaced, and all go back. False, and without recovery: it is told (MS_ON_HANG)."""
    straggler_percent: int = 33
    """By how much a rank's own work on a batch may take longer than is usual before it is told to be slow; 0: nobody looks (MS_STRAGGLER_PERCENT)."""
    drain_timeout_ms: int = 5_000
    """How long a rank may take to be handed over before its process leaves without it (MS_DRAIN_TIMEOUT)."""
    receive_timeout_ms: int = 15_000
    """How long a worker waits for any message of the scheduler before it dials again (MS_RECEIVE_MSG_TIMEOUT)."""
    heartbeat_retry_timeout_ms: int = 20_000
    """Without recovery: how long a worker tries to reach a silent scheduler before it ends itself (MS_HEARTBEAT_RETRY_TIMEOUT)."""
    heartbeat_enabled: bool = True
    """False: a silent node is never declared lost by its lease (MS_DISABLE_HEARTBEAT=1, for debuggers)."""
    heartbeat_ms_min: int = 3_000
    """Lower bound of the random wait between heartbeats (MS_RETRY_INTERVAL_LOWER)."""
    heartbeat_ms_max: int = 5_000
    """Upper bound of it (MS_RETRY_INTERVAL_UPPER)."""
    backoff_ms_min: int = 50
    """First wait before a closed connection is dialled again. Small: within the reconnect grace it must succeed several times."""
    backoff_ms_max: int = 1_000
    """Longest wait between two dials. At twice that a restarted scheduler would feel slow, at half 1,000 workers would hammer it."""
    rejoin_wait: bool = True
    """True: a refused worker waits and asks again (MS_REJOIN=wait). False: it exits at once (MS_REJOIN=fail)."""
    allow_restart_from_zero: bool = False
    """True: when some ranks hold checkpoints but none in common, start again at step 0 (MS_ALLOW_RESTART_FROM_ZERO)."""
    live_rollback: bool = False
    """True: training goes on from a survivor's memory where that is newer than every common checkpoint (MS_ROLLBACK=live)."""
    continues_run: bool = False
    """True: a finished run goes on from its newest common checkpoint. False: a finished job's path starts its next run (MS_CONTINUE)."""
    rebuild_store: bool = False
    """True: a job that the workers know and the store does not is taken up again from what they report (MS_REBUILD_STORE)."""
    standby_count: int = 0
    """How many processes may wait without a rank until one is lost (MS_STANDBY_NUM)."""
    checkpoint_copies: int | None = None
    """On how many other hosts each rank's checkpoints lie (MS_CHECKPOINT_COPIES). None: as core/policy/copies.py says."""
    rejoin_on_proof: bool = False
    """True: a lost id may return at once where its process is known to be dead (MS_REJOIN=proof). False: the window always counts."""
    requests_remembered: int = 64
    """Answers kept per node for repeats. A worker has a handful under way; 64 is ten times that."""
    frame_bytes_max: int = 1_048_576
    """Largest message after admission."""
    frame_bytes_max_unregistered: int = 65_536
    """Largest message before admission."""

    @property
    def returns_ms(self) -> int:
        """How long a process that is well takes at most to be heard: it notices the silence, waits between two dials, and dials."""
        return self.receive_timeout_ms + self.backoff_ms_max + DIAL_MS

    @property
    def world_size(self) -> int:
        """Number of ranks in the world."""
        return self.worker_count
