"""Standbys, fresh ids and proofs of death under random faults, and how soon a job goes on where nothing else fails."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from tests.simulation.calm import BACK_MS, calm_shape, trained_again_after
from tests.simulation.process import Process
from tests.simulation.run import Outcome, run
from tests.simulation.shape import Spares, losses_of
from tests.simulation.world import World

SPARES = Spares(standbys=2, fresh_ids=True, hosts=2, late_looks=0.1, identities=True, exits_seen=0.5)
BY_HAND = msgspec.structs.replace(SPARES, fresh_ids=False, shared_files=False, rejoin_on_proof=True)
FEW, MANY = range(6), range(80)
"""Seeds of the gate, and of `make test-all`."""
CALM = 8
"""Seeds of each story in which nothing fails but what is planted."""

_OFTEN = ("kill", "kill", "in an offer", "in an offer", "cut", "scheduler", "lost id", "wrong word", "host")


def disturbed(seed: int, spares: Spares) -> Outcome:
    """A seed whose faults are mostly those that standbys are for."""
    return run(seed, workers=3, kinds=_OFTEN, spares=spares)


def kept(seeds: Iterable[int], spares: Spares) -> None:
    """Every promise is kept in all of these seeds, and standbys take more ranks than there are seeds."""
    played = [seed for seed in seeds if not losses_of(seed)]
    taken = 0
    for seed in played:
        outcome = disturbed(seed, spares)
        assert not outcome.failure, "\n".join((*outcome.log, f"seed {seed}", outcome.failure))
        taken += outcome.seen.get("a rank was taken over", 0)
    assert taken > len(played), "the standbys were there for nothing"


@pytest.mark.parametrize("spares", [SPARES, BY_HAND], ids=["fresh ids", "by hand"])
def test_standbys_keep_every_promise_under_a_few_seeds(spares: Spares) -> None:
    kept(FEW, spares)


@pytest.mark.slow
@pytest.mark.parametrize("spares", [SPARES, BY_HAND], ids=["fresh ids", "by hand"])
def test_standbys_keep_every_promise_while_everybody_around_them_dies(spares: Spares) -> None:
    kept(MANY, spares)


def kill(world: World, process: Process) -> None:
    world.kill(process)


def test_a_job_with_a_ready_standby_goes_on_at_once_after_a_death() -> None:
    for seed in range(CALM):
        shape = calm_shape(seed, Spares(standbys=1, identities=True), relaunch_ms=(60_000, 60_000))
        after_ms, world = trained_again_after(seed, shape, kill)
        assert after_ms <= shape.rules.reconnect_grace_ms + BACK_MS, f"I25: seed {seed}: {after_ms} ms"
        assert world.clock.seen["a rank was taken over"] == 1


def test_a_successor_under_a_fresh_id_waits_for_no_window() -> None:
    for seed in range(CALM):
        shape = calm_shape(seed, Spares(fresh_ids=True, identities=True), relaunch_ms=(10, 100))
        after_ms, world = trained_again_after(seed, shape, kill)
        assert after_ms <= shape.rules.reconnect_grace_ms + BACK_MS, f"I25: seed {seed}: {after_ms} ms"
        assert world.clock.seen["a rank was taken over"] == 1


def test_who_is_proven_dead_returns_under_its_own_id_at_once() -> None:
    spares = Spares(identities=True, rejoin_on_proof=True, exits_seen=1.0)
    for seed in range(CALM):
        # It asks before anybody knows that its id is free, and is told when it is.
        shape = calm_shape(seed, spares, relaunch_ms=(10, 100))
        after_ms, _ = trained_again_after(seed, shape, kill)
        # Of processes of other hosts their launchers tell, within 2 s.
        assert after_ms <= shape.rules.reconnect_grace_ms + 2_000 + BACK_MS, (
            f"I25: seed {seed}: {after_ms} ms"
        )


def test_a_standby_that_cannot_read_the_files_leaves_the_rank_to_who_can() -> None:
    spares = Spares(standbys=1, fresh_ids=True, hosts=2, shared_files=False, identities=True)
    beside = elsewhere = 0
    for seed in range(CALM):
        shape = calm_shape(seed, spares, relaunch_ms=(500, 1_000))
        if shape.rules.worker_count == 1:
            continue
        after_ms, world = trained_again_after(seed, shape, kill)
        assert after_ms <= shape.rules.reconnect_grace_ms + 2 * BACK_MS, f"I25: seed {seed}: {after_ms} ms"
        declined = world.clock.seen["a standby was asked and did not take the rank"]
        beside += not declined
        elsewhere += bool(declined)
    assert beside
    assert elsewhere
