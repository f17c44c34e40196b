"""How a data set is divided into batches: the same number of steps is another place in another division."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from mindspore import dataset as datasets

from recovery.checkpoint.position import Position
from recovery.errors import CheckpointStateError

_logger = logging.getLogger("recovery.mindspore")

_UNSEEDED = "5489"
"""What MindSpore says where nobody has set a seed: it then draws one at each start."""
_SIZE, _BATCHES, _SINK = "batch_size", "batches_per_epoch", "sink_size"


class Division:
    """Of the data set that is trained on."""

    def __init__(self, dataset: Any, batches_per_epoch: int, *, sink_size: int = 0) -> None:
        """Look at it, before its iterator is made.

        Args:
            dataset: of MindSpore.
            batches_per_epoch: of an epoch as steps are counted.
            sink_size: steps that the script calls an epoch, whatever the data set has; 0: an epoch is the data set's.
        """
        self._batches = batches_per_epoch
        nodes = list(_nodes(dataset))
        self._is_of_rows = _is_of_rows(dataset)
        self.now = {_BATCHES: str(batches_per_epoch), **_found(dataset, nodes)}
        """By name, in words. What MindSpore does not say is not in it."""
        if sink_size:
            self.now[_SINK] = str(sink_size)
        if self.now.get("seed") == _UNSEEDED:
            _logger.warning(
                "event=shuffle_without_seed the data set shuffles without a seed: a job that goes on in the middle of an epoch finds another order, in "
                "which samples come twice and others never. Call mindspore.set_seed(...) before the data set is made"
            )
        self.saved: Mapping[str, str] = {}
        """Of the checkpoint that training goes on from; empty: it does not say, or there is none."""
        self.redivides = False
        """May an epoch that was begun with another batch_size be taken up at its row?"""

    def place(self, at: Position) -> Position:
        """The same place as this division counts it: behind an epoch's last batch MindSpore stands in the next epoch.

        Raises:
            CheckpointStateError: within an epoch, and it is divided otherwise here.
        """
        if _BATCHES not in self.saved:
            epoch, batch = divmod(at.step, self._batches)
            return Position(step=at.step, epoch=epoch, batch=batch)
        passes, batch = divmod(at.batch, int(self.saved[_BATCHES]))
        at = Position(step=at.step, epoch=at.epoch + passes, batch=batch)
        changes = {
            name: f"{name} was {self.saved.get(name)} and is {self.now.get(name)}"
            for name in sorted(self.now.keys() | self.saved.keys())
            if self.now.get(name) != self.saved.get(name)
        }
        if not changes:
            return at
        said = ", ".join(changes.values())
        sinks = _SINK in self.now or _SINK in self.saved
        if not batch and not sinks:
            _logger.warning("event=division_changed epoch=%d %s: from this pass on", at.epoch + 1, said)
            return at
        if self.redivides and not sinks and _SIZE in changes and set(changes) <= {_SIZE, _BATCHES}:
            return self._redivided(at, said)
        raise _other_place(at, said)

    def _redivided(self, at: Position, said: str) -> Position:
        before, size = int(self.saved.get(_SIZE, 0)), int(self.now.get(_SIZE, 0))
        rows = at.batch * before
        if not self._is_of_rows or not (before and size):
            raise _other_place(at, f"{said}, and the rows behind cannot be counted (shuffle, repeat, skip)")
        if rows % size:
            raise _other_place(at, f"{said}, and the {rows} rows behind are no whole number of batches")
        _logger.warning("event=pass_redivided epoch=%d %s", at.epoch + 1, said)
        return Position(step=at.step, epoch=at.epoch, batch=rows // size)

    def steps_to(self, at: Position) -> int:
        """How many of its batches lie before a place."""
        return at.epoch * self._batches + at.batch


def _other_place(at: Position, said: str) -> CheckpointStateError:
    return CheckpointStateError(
        field="dataset",
        reason=f"{said}, so batch {at.batch} of epoch {at.epoch + 1}, where the checkpoint stands, is another place",
        next_step="Give what was given, or go back to a checkpoint between two epochs; another batch_size alone, of which whole batches are"
        ' behind, may be had with override={"dataset": ["batch_size"]}.',
    )


def _nodes(dataset: Any) -> Iterator[Any]:
    yield dataset
    for child in getattr(dataset, "children", ()):
        yield from _nodes(child)


def _is_of_rows(dataset: Any) -> bool:
    """Are its batches whole rows in the order in which they are drawn, so that the rows behind can be counted?"""
    while isinstance(dataset, (datasets.MapDataset, datasets.ProjectDataset, datasets.RenameDataset)):
        dataset = dataset.children[0]
    return isinstance(dataset, datasets.BatchDataset)


def _found(dataset: Any, nodes: list[Any]) -> dict[str, str]:
    found = {}
    try:
        size = int(dataset.get_batch_size())
    except Exception:  # noqa: BLE001 - of a pipeline of the user's; what is wrong with it is said where it is drawn from
        size = 0
    # Where a function decides, each batch has a size of its own.
    if size > 0:
        found[_SIZE] = str(size)
    shards = [number for node in nodes if (number := _shards(node))]
    if shards:
        found["num_shards"] = ",".join(map(str, shards))
    order = [drawn for node in nodes if (drawn := _order(node))]
    if order:
        found["order"] = ",".join(order)
    if any(drawn != _SEQUENTIAL for drawn in order):
        found["seed"] = str(datasets.config.get_seed())
    return found


_SEQUENTIAL = "SequentialSampler"


def _shards(node: Any) -> int:
    sampler = getattr(node, "sampler", None)
    return int(getattr(node, "num_shards", None) or getattr(sampler, "num_shards", None) or 0)


def _order(node: Any) -> str:
    if isinstance(node, datasets.ShuffleDataset):
        return f"ShuffleDataset of {node.buffer_size}"
    sampler = getattr(node, "sampler", None)
    if sampler is None:
        flag = getattr(node, "shuffle_flag", None)
        return "" if flag is None else f"shuffle_flag {flag}"
    shuffle = getattr(sampler, "shuffle", None)
    drawn = getattr(shuffle, "name", None)
    return _SEQUENTIAL if drawn == "FALSE" else type(sampler).__name__
