"""Options that differ between ranks (two hosts with another script, another learning rate), found before the first step of an entry.

As with passes (same_passes.py), the first rank writes down what it has in the world's store, and each other one compares: nobody waits for anybody.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from torch import distributed

from recovery.errors import UsageError
from recovery.torch.overrides import Built, with_base
from recovery.torch.same_passes import NotSaidError, first_said

_logger = logging.getLogger("recovery.torch")

_said: set[str] = set()
"""In this process already."""
_NOTHING = "nothing"
_PLACE = "recovery/options"


def check(options: Built, conditions: Mapping[str, Any], *, are_replicas: bool) -> None:
    """Compare with the other ranks; costs two questions to the world's store.

    Args:
        options: of optimizers and schedules, as they were built.
        conditions: what may differ, and is said (`event=options_differ_between_ranks`): batch sizes, the script, versions.
        are_replicas: DistributedDataParallel averages the gradients, so every rank is to make the same step of them.

    Raises:
        UsageError: an option of replicas differs.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    rank, here, mine = (
        distributed.get_rank(),
        dict(_named(options)),
        {name: repr(of) for name, of in conditions.items()},
    )
    own = json.dumps([rank, here, mine])
    try:
        first, there, theirs = json.loads(first_said(_PLACE, own, counter=f"{_PLACE}/of/{rank}"))
    except NotSaidError as error:
        _logger.log(error.level, "event=options_not_compared %s: give every rank the same options", error)
        return
    # Stages of a pipeline have other optimizers.
    names = here.keys() | there.keys() if are_replicas else here.keys() & there.keys()
    differing = _differences(names, here, there, rank, first)
    if differing and are_replicas:
        raise UsageError(
            field="options",
            reason=f"{'; '.join(differing)}: DistributedDataParallel averages the gradients, and the weights of the ranks would drift apart",
            next_step="Give every rank the same value: the same script with the same arguments on every host.",
        )
    differing += _differences(mine.keys() & theirs.keys(), mine, theirs, rank, first)
    if differing and not _said.issuperset(differing):
        _said.update(differing)
        _logger.warning(
            "event=options_differ_between_ranks %s. Training goes on with each rank's own",
            "; ".join(differing),
        )


def _named(options: Built) -> Iterator[tuple[str, str]]:
    for part, of_part in options.items():
        for number, of_item in enumerate(of_part):
            for group, values in enumerate(of_item):
                for key, value in with_base(values).items():
                    yield f"{part}[{number}].{key}" + (f" of group {group}" if group else ""), repr(value)


def _differences(
    names: Any, here: Mapping[str, str], there: Mapping[str, str], rank: int, first: int
) -> list[str]:
    return [
        f"{name} is {here.get(name, _NOTHING)} on rank {rank} and {there.get(name, _NOTHING)} on rank {first}"
        for name in sorted(names)
        if here.get(name) != there.get(name)
    ]
