"""What one seed looks like: how large, how fast, how patient, how faulty."""

from __future__ import annotations

import random

import msgspec

from recovery.core.rules import Rules

FAULTS_UNTIL_MS = 60_000
"""The safety phase: faults may come at any moment of it."""

LIVENESS_MS = 200_000
"""The liveness phase: from now on nothing new breaks, and the job must end."""


_SEEDS_WITH_LOSSES = (0, 3, 5)


class Spares(msgspec.Struct, frozen=True, kw_only=True):
    """Standbys, hosts, and how a lost process is started again. The defaults are what there was before standbys."""

    standbys: int = 0
    fresh_ids: bool = False
    """A lost process is started again under a fresh id (`recovery msrun --rejoin=new`)."""
    hosts: int = 1
    shared_files: bool = True
    """Every host reads every checkpoint; else each host its own only."""
    late_looks: float = 0.0
    """How many looks for the files of an offered rank take longer than the offer stands, or never end."""
    identities: bool = False
    """Nodes say which process they are."""
    rejoin_on_proof: bool = False
    exits_seen: float = 0.0
    """How many ends of processes their launchers report."""
    drains: bool = False
    """Ranks are asked to depart: SIGTERM, `recovery drain`."""
    job_stops: bool = False
    hosts_leave: bool = False
    """Launchers say that their hosts are to be taken away."""
    """Launchers are asked to end the job."""
    training_stops: bool = False
    """Scripts end training before its last step."""
    copies: int | None = None
    """MS_CHECKPOINT_COPIES; None: nodes do not serve files."""
    failing_fetches: float = 0.0
    """How many requests for a contribution are cut, or come too slowly."""
    fetch_ms: tuple[int, int] = (1, 50)
    stores: bool = False
    """Ranks send their checkpoints to object storage."""
    memory_every: int = 0
    """Steps between two checkpoints in memory; 0: there are none."""
    live: bool = False
    """MS_ROLLBACK=live."""
    shards: int = 1
    """Parts that the state is cut into: rank r holds part r modulo this. The number of workers is a multiple of it."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Drawn once per seed. Faults that are not on in a seed leave room for what needs a long time without them."""

    rules: Rules
    steps: int
    step_ms: tuple[int, int]
    save_every: int
    keep: int
    scripts: bool
    """Processes replace themselves by exec at the end of a generation (recovery.init)."""
    drift: float
    """How much faster or slower a process's clock may run."""
    delay_ms: tuple[int, int]
    stall_share: float
    slow_writes: float
    failing_saves: float
    hanging: float
    relaunch_ms: tuple[int, int]
    kinds: tuple[str, ...]
    pause_ms: int
    """Longest time between two faults."""
    stuck_rows: float
    """How often a worker's own store takes a batch and does not come back."""
    spares: Spares = Spares()


def shape_of(
    seed: int, all_kinds: tuple[str, ...], *, workers: int | None = None, spares: Spares | None = None
) -> Shape:
    """Draw the shape of a seed.

    Args:
        seed: which.
        all_kinds: of faults; some of them are on.
        workers: None: drawn too, 1 to 8.
        spares: None: drawn too.
    """
    spares = spares_of(seed) if spares is None else spares
    draw = random.Random(f"{seed}/shape")
    lease_ms = draw.choice((3_000, 6_000, 12_000))
    workers = workers or draw.choice((1, 2, 3, 4, 6, 8))
    rules = Rules(
        worker_count=workers,
        server_count=draw.choice((0, 0, 0, 0, 1, 2)),
        lease_ms=lease_ms,
        rejoin_window_ms=draw.choice((0, lease_ms, lease_ms, 2 * lease_ms)),
        reconnect_grace_ms=draw.choice((0, 500, 500, 2_000)),
        # Longer than any wait that faults explain: a job that only waits is found by its reason.
        topology_timeout_ms=100_000,
        abort_timeout_ms=draw.choice((1_000, 3_000)),
        receive_timeout_ms=lease_ms // 2,
        rebuild_store=True,
        heartbeat_ms_min=lease_ms // 10,
        heartbeat_ms_max=lease_ms // 6,
        standby_count=spares.standbys,
        rejoin_on_proof=spares.rejoin_on_proof,
        checkpoint_copies=spares.copies,
        live_rollback=spares.live,
    )
    if spares.drains:
        limit_ms = random.Random(f"{seed}/drain times").choice((1_000, 2_000, 5_000, 5_000))
        rules = msgspec.structs.replace(rules, drain_timeout_ms=limit_ms)
    return Shape(
        rules=rules,
        steps=draw.choice((40, 100, 300)),
        step_ms=draw.choice(((20, 60), (100, 300), (300, 600))),
        save_every=draw.choice((5, 5, 10, 25)),
        keep=draw.choice((2, 3, 5)),
        scripts=draw.random() < 0.3,
        drift=draw.choice((0.0, 0.001, 0.01)),
        delay_ms=draw.choice(((1, 3), (1, 8), (5, 50))),
        stall_share=draw.choice((0.0, 0.0, 0.01, 0.1)),
        slow_writes=draw.choice((0.0, 0.05, 0.5)),
        failing_saves=draw.choice((0.0, 0.05, 0.2)),
        hanging=draw.choice((0.0, 0.03, 0.2)),
        relaunch_ms=draw.choice(((200, 4_000), (10, 500), (3_000, 10_000))),
        kinds=tuple(kind for kind in all_kinds if draw.random() < 0.6) or all_kinds,
        pause_ms=draw.choice((1_000, 3_000, 10_000)),
        stuck_rows=draw.choice((0.0, 0.0, 0.02, 0.2)),
        spares=spares,
    )


def losses_of(seed: int) -> list[tuple[int, int]]:
    """When the store is lost, and a number for each: never in most seeds. From a stream of its own: old seeds still do the same."""
    if seed % 7 not in _SEEDS_WITH_LOSSES:
        return []
    draw = random.Random(f"{seed}/losses")
    times = sorted(draw.randrange(FAULTS_UNTIL_MS) for _ in range(draw.randint(1, 8)))
    return [(at_ms, draw.randrange(10**6)) for at_ms in times]


def spares_of(seed: int) -> Spares:
    """Draw them, from a stream of their own: the rest of a seed does not depend on it."""
    draw = random.Random(f"{seed}/spares")
    stores = random.Random(f"{seed}/storage").random() < 0.3
    if draw.random() < 0.2:
        return Spares(stores=stores)
    return Spares(
        standbys=draw.choice((0, 1, 1, 2, 3)),
        fresh_ids=draw.random() < 0.5,
        hosts=draw.choice((1, 2, 3)),
        shared_files=draw.random() < 0.5,
        late_looks=draw.choice((0.0, 0.0, 0.1, 0.5)),
        identities=True,
        rejoin_on_proof=draw.random() < 0.4,
        exits_seen=draw.choice((0.0, 0.5, 1.0)),
        stores=stores,
    )
