"""Scripts that end training (`session.stop()`): where they ask, and what is promised of the end.

I32  training that has ended at a step ends there for all: no rank trains a step behind it, whatever dies; unless the scheduler's store is
     lost, which alone knew it (docs/guarantees.md)
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from recovery.core.policy.rebuild import NUMBERS_PER_REBUILD

if TYPE_CHECKING:
    from recovery.core import messages as m
    from tests.simulation.process import Process
    from tests.simulation.world import World


class Ask(msgspec.Struct, frozen=True):
    """A script of this rank ends training when it is done with this step."""

    rank: int
    step: int


def asks_of(seed: int, workers: int, steps: int) -> tuple[Ask, ...]:
    """Draw where whose script asks: all at one step, as a loss that all know does; one rank alone; or each at a step of its own."""
    draw = random.Random(f"{seed}/training stops")
    step = draw.randint(1, steps)
    match draw.choice(("all", "one", "apart")):
        case "all":
            return tuple(Ask(rank, step) for rank in range(workers))
        case "one":
            return (Ask(draw.randrange(workers), step),)
        case _:
            return tuple(Ask(rank, min(steps, step + draw.randint(0, 2))) for rank in range(workers))


class TrainingEndPromises:
    """Where training ends, as far as anybody has heard."""

    def __init__(self, world: World) -> None:
        """Nobody has asked.

        Args:
            world: in which.
        """
        self._world = world
        self._asks = asks_of(world.clock.seed, world.rules.worker_count, world.shape.steps)
        self._is_on = world.shape.spares.training_stops
        self._ends: dict[tuple[str, int, int], int] = {}
        """By job, run and store: where training ends."""
        self._named: set[int] = set()
        """At which the scheduler has asked ranks to stop for it: later ones as long as a rank that is away may have passed those before."""
        self._done: dict[tuple[str, int, int], int] = {}
        """By job, run and generation: where its ranks were done."""
        self._may_be_forgotten = False
        """A store was lost that knew that a script ends training, and the job may go on to its last step."""

    def asks(self, plan: m.Rollback, step: int) -> bool:
        """Does the script of this rank end training behind this step?"""
        return self._is_on and Ask(plan.rank, step) in self._asks

    def named(self, step: int) -> None:
        """The scheduler asks a rank to stop at this step for the end of training."""
        self._named.add(step)

    def store_lost(self) -> None:
        """The next store knows nothing of it, and who has passed the step asks no more."""
        self._may_be_forgotten |= bool(self._named)

    def heard(self, plan: m.Rollback, step: int) -> None:
        """A rank hears where training ends."""
        key = _store_of(plan)
        if step == plan.step:
            # Of a scheduler that is killed before the ranks agree only the wish is left, and they have gone on: the plan begins behind it.
            self._ends[key] = max(step, self._ends.get(key, 0))
        end = self._ends.setdefault(key, step)
        assert end == step, (
            f"I32: training was to end at step {end}, and rank {plan.rank} hears of step {step}"
        )

    def stepped(self, process: Process, plan: m.Rollback, step: int) -> None:
        """A rank has applied a step."""
        end = self._ends.get(_store_of(plan))
        assert end is None or step <= end, (
            f"I32: training has ended at step {end}, and {process.name} trains step {step}"
        )

    def done(self, plan: m.Rollback, step: int) -> None:
        """The training function of a rank has returned."""
        end = self._done.setdefault((plan.job, plan.run, plan.generation), step)
        assert end == step, f"I32: a rank was done at step {end}, and rank {plan.rank} is at step {step}"

    def finished(self) -> None:
        """The job has, with its last generation."""
        if not self._is_on:
            return
        step, last = self._done[max(self._done, key=lambda key: key[1:])], self._world.shape.steps
        self._world.clock.seen["a script ended training"] += step < last
        first = min(ask.step for ask in self._asks)
        ended = {first, *self._named, *self._ends.values()}
        passed_all = step == last and (step < max(ended) or self._may_be_forgotten)
        assert step >= first, f"I32: a script ends training at step {first}, and it has ended at step {step}"
        assert step in ended or passed_all, (
            f"I32: a script ended training at step {first}, and it went on to step {step}"
        )


def _store_of(plan: m.Rollback) -> tuple[str, int, int]:
    """Which store gave a plan: one that is built again numbers its plans from another thousand."""
    return plan.job, plan.run, plan.generation // NUMBERS_PER_REBUILD
