"""Everything that decides the next step, in one object that can be saved and put back bit for bit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import torch

from recovery.checkpoint.position import Position
from recovery.errors import UsageError
from recovery.torch import gradients as gradients_of
from recovery.torch import (
    live_limits,
    mapped_file,
    module_names,
    outside_state_dict,
    overrides,
    parts_of_state,
    restored,
    same_options,
    same_passes,
    spread,
    unreduced_gradients,
)
from recovery.torch import payload as payloads
from recovery.torch.as_built import AsBuilt
from recovery.torch.beside import Beside
from recovery.torch.file_layout import FileLayout
from recovery.torch.host_copy import HostCopy
from recovery.torch.live_memory import LiveMemory
from recovery.torch.live_parts import LiveParts
from recovery.torch.module_attributes import ModuleAttributes
from recovery.torch.outside_state_dict import OUTSIDE
from recovery.torch.overrides import BUILT
from recovery.torch.passes import Passes
from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.replica_fingerprints import Replicas
from recovery.torch.shared_state import SharedPieces, fingerprints_of, join, kept_by_each
from recovery.torch.stateful_loader import StatefulLoader
from recovery.training import changed_since
from recovery.training.state import CannotLayOutError

if TYPE_CHECKING:
    from recovery.torch.resharding import SavedPlace

_logger = logging.getLogger("recovery.torch")

_ALIKE = "gradients_alike"
"""In a file: its gradients were added over the ranks. Live rollback alone knows that, and writes it."""


class TrainState:
    """Model, optimizer, schedules, loaders, anything with `state_dict` and `load_state_dict`, gradients, and the random generators.

    A list or tuple of such objects counts as one part. A model in DistributedDataParallel is saved without its wrapper. Of what is spread over
    the ranks (DTensors: FSDP2, HSDP, tensor parallel) each rank saves its own shards.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each thing that a program may want
        self,
        *,
        model: Any,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        loader: Any = None,
        gradients: bool = True,
        per_rank: Iterable[str] = (),
        override: Mapping[str, Sequence[str]] | None = None,
        **objects: Any,
    ) -> None:
        """Name the parts.

        Args:
            model: a module, in DistributedDataParallel or not, or a list of them; tensors of any dtype, on any device.
            optimizer: one or a list.
            lr_scheduler: one or a list.
            loader: the one that `Session.steps` draws batches from: a `ResumableLoader`, or one with a position of its own, as torchdata's
                `StatefulDataLoader` (stateful_loader.py says what is asked of it).
            gradients: False: they are not saved, since the loop clears them before each backward pass.
            per_rank: names of parts that differ between ranks; `ModelCheckpoint(layout="shared")` then saves them for each rank.
            override: names of what a checkpoint does not decide where the program builds it otherwise than the one that saved, by part:
                `{"optimizer": ["lr", "weight_decay"], "lr_scheduler": ["gamma"], "loader": ["batch_size"]}`. What has changed and is not named is
                said, and stays as saved.
            **objects: further parts by name: a second loader, a gradient scaler, running averages, random generators of torch, NumPy or Python, one or
                several in a list or dictionary.

        Raises:
            UsageError: a part has no `state_dict` and `load_state_dict`, or `per_rank` names none; `override` likewise, where training begins.
        """
        if loader is not None and not isinstance(loader, Passes):
            loader = StatefulLoader(loader)
        self._loader: Passes | None = loader
        given = {
            "model": model,
            "optimizer": optimizer,
            "lr_scheduler": lr_scheduler,
            "loader": loader,
            **objects,
        }
        self._parts = parts_of_state.named(given)
        self.models = self._parts["model"]
        self._per_rank = parts_of_state.those_named(per_rank, self._parts)
        self._override = dict(override or {})
        self._saves_gradients, self._gradients_logged = gradients, False
        self._live_parts: LiveParts | None = None
        self._built: AsBuilt | None = None
        self._replicas = Replicas()
        self._attributes: ModuleAttributes | None = None
        self._beside = Beside(lambda: self._parts)
        parts_of_state.check(self._parts)

    @property
    def batches(self) -> Iterable[Any]:
        """The loader that `Session.steps` draws from.

        Raises:
            UsageError: none was given.
        """
        if self._loader is None:
            raise UsageError(
                field="TrainState",
                reason="has no loader to draw batches from",
                next_step="Give loader=ResumableLoader(...), or a StatefulDataLoader.",
            )
        return self._loader

    def compare_pass(self) -> None:
        """Before a pass: see that it has as many batches on every rank.

        The rest of a pass has: the loader has compared its division when it was given its position, and a question to the world's store
        would take each rank 3 ms of a recovery.

        Raises:
            UsageError: another rank's has more, or fewer.
        """
        if self._loader is not None and not self._loader.batch:
            same_passes.check(self._loader.length, epoch=self._loader.epoch)

    def begin(self) -> None:
        """Keep everything as it was built: there is no checkpoint to load.

        Raises:
            UsageError: a schedule of an optimizer is no part; behind a restore that is found at the first save.
        """
        self._note_built()
        self._beside.check()

    def write(self, stream: BinaryIO) -> None:
        """Write the whole state with torch.save.

        Raises:
            CheckpointStateError: a part holds what a safe load (weights_only) refuses; found at each save.
        """
        torch.save(self._take(), stream)

    def lay_out(self) -> FileLayout:
        """Say where every byte of the file that `write` would write will be, without reading a tensor.

        Raises:
            CannotLayOutError: torch.save has to write it itself, or a subclass does.
            CheckpointStateError: as for `write`.
        """
        if type(self).write is not TrainState.write:
            reason = f"{type(self).__name__} has a write() of its own"
            raise CannotLayOutError(reason)
        return FileLayout(self._take())

    def snapshot(self) -> HostCopy:
        """Copy the state, tensors included, to the host's memory, so that a thread may write it while training goes on.

        Raises:
            CheckpointStateError: as for `write`.
        """
        return HostCopy(self._take())

    def read(self, path: Path) -> None:
        """Load a file that `write` made. The random generators come last: everything before them may draw.

        Raises:
            CheckpointStateError: the file does not fit these parts.
        """
        try:
            payload = mapped_file.load(path)
        except Exception as error:
            # torch raises half a dozen types for what is no file of ours.
            raise restored.unfit(str(path), f"cannot be loaded ({error})") from error
        self._put(payload, path)

    def take_position(self, position: Position, *, exact: bool) -> Position:
        """Believe the session: the loader was put to its own place by `read`."""
        loader = self._loader
        if exact or loader is None:
            return position
        return msgspec.structs.replace(position, epoch=loader.epoch, batch=loader.batch)

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this rank that the loop has received in the pass under way."""
        return self._loader.samples if self._loader is not None else 0

    def replica(self) -> dict[str, str]:
        """Fingerprints of what DistributedDataParallel keeps alike on all ranks; empty: nothing is to be compared (replica_fingerprints.py)."""
        return self._replicas.fingerprints(
            {name: items for name, items in self._parts.items() if name not in self._per_rank}
        )

    def take_shared(self, *, rank: int, world_size: int) -> SharedPieces:
        """Copy what this rank writes where each tensor that all ranks share is written once.

        Raises:
            CheckpointStateError: as for `write`; also when a tensor cannot be shared.
        """
        return SharedPieces(
            self._take(), kept_by_each(self._bare_parts(), self._per_rank), rank=rank, world_size=world_size
        )

    def fingerprints(self, side: Path) -> dict[str, str]:
        """Of a state's shared parts by name, as they were when `side` was saved; empty: it cannot be read."""
        return fingerprints_of(side)

    def read_shared(self, side: Path, parts: Sequence[Path], replicated: str) -> None:
        """Load what the ranks have written as `take_shared` gave it.

        Args:
            side: this rank's own.
            parts: of all ranks, verified.
            replicated: fingerprint of the state that they share.

        Raises:
            CheckpointManifestError: they do not belong together. Nothing was loaded.
            CheckpointStateError: what they are does not fit these parts.
        """
        self._put(join(side, parts, replicated), side)

    def _put(self, payload: Any, path: Path) -> None:
        if not isinstance(payload, dict) or payload.get("format") not in (payloads.WHOLE, payloads.SHARDED):
            raise restored.unfit(str(path), "is no training state of this release")
        self._check_parts(payload["parts"])
        parts = self._bare_parts()
        built = self._note_built()
        payload = mapped_file.own(module_names.of_file(payload, parts), parts)
        payload = spread.put_back(payload, parts)
        outside = payload.get(OUTSIDE, {})
        outside_state_dict.make_room(self._parts, outside, payload["parts"])
        for name, items in parts.items():
            restored.load(name, items, payload["parts"][name])
        outside_state_dict.put(self._parts, outside)
        restored.check(parts_of_state.without_loaders(parts), payload["parts"])
        built.options = overrides.apply(self._override, parts, payload.get(BUILT, {}), built.options)
        self._put_gradients(payload)
        for items in self._parts.values():
            for item in items:
                if isinstance(item, Passes):
                    item.prime()
        restore_random_state(payload["random"])

    def read_sharded(self, directory: str | Path, step: int | None = None) -> SavedPlace:
        """Begin with the checkpoint of another job, of any mesh, world size and layout: call it where `session.step` is 0.

        Model, optimizer, schedules and further objects are loaded. The position in the data and the random generators are not: they
        belong to the ranks that saved. What else differs between ranks (batch statistics, parts of each rank) is as rank 0 saved it.

        Args:
            directory: where that job's ranks saved: their files, or a directory for each. All must be readable from here.
            step: 1-based, over all epochs; None: the newest of which every rank's file is there.

        Returns:
            Where that job stood.

        Raises:
            CheckpointError: a file is missing or damaged, or does not fit these parts; says which.

        Cost: each rank reads all files once to digest them, then what its own shards need. No collective.
        """
        from recovery.torch import resharding  # noqa: PLC0415 - as in spread.py

        saved = resharding.saved_in(Path(directory), step)
        parts = parts_of_state.without_loaders(self._bare_parts())
        states = resharding.states_for(saved, parts)
        for name, items in parts.items():
            restored.load(name, items, states[name])
        restored.check(parts, states)
        place = saved.place
        _logger.info(
            "event=read_sharded step=%d world_size=%d path=%s loaded=%s not_loaded=%s; the random generators stay as they are",
            place.step,
            place.world_size,
            directory,
            ",".join(parts),
            ",".join(sorted(set(saved.parts) - set(parts))) or "nothing",
        )
        return place

    def versions(self) -> dict[str, str]:
        """For the manifest: of torch, and what else of this process decides the order of additions."""
        return {**payloads.versions(), **changed_since.script()}

    @property
    def sharded(self) -> bool:
        """Is it spread over the ranks, so that no rank's file holds all of it?"""
        return spread.is_sharded(self._bare_parts())

    def _take(self) -> dict[str, Any]:
        parts = {
            name: [module_names.state_of(item) for item in items]
            for name, items in self._bare_parts().items()
        }
        self._beside.report()
        if self._built is not None:
            self._built.compare(self._parts)
        gradients = {"gradients": self._take_gradients()} if self._saves_gradients else {}
        outside = outside_state_dict.take(self._parts, self._attributes)
        taken = spread.split({"parts": parts, OUTSIDE: outside, **gradients})
        # At each save: a value that becomes unsafe later would be committed, and could never be loaded.
        for name, states in (*taken["parts"].items(), *taken[OUTSIDE].items()):
            payloads.refuse_unsafe(name, states)
        if taken.get("gradients") and self._live_parts is not None:
            taken[_ALIKE] = self._live_parts.gradients_are_alike
        number = payloads.SHARDED if payloads.SHARDS in taken else payloads.WHOLE
        if self._built is not None:
            taken[BUILT] = self._built.options
        return {"format": number, **taken, "random": capture_random_state()}

    def live_parts(self) -> LiveParts:
        """Sorted as live rollback treats them."""
        # A state that is taken from another rank is noted nowhere else.
        self._attributes = self._attributes or ModuleAttributes(self._parts)
        self._live_parts = LiveParts(
            self._parts, gradients=self._saves_gradients, attributes=self._attributes
        )
        return self._live_parts

    def live_memory(self) -> LiveMemory:
        """What this process's memory holds of this state. Ask before anything is loaded: the seed of the generators is noted here."""
        self._note_built()
        return LiveMemory(self.live_parts())

    def why_not_live(self) -> tuple[str, ...]:
        """What can be neither derived nor given to another rank, a sentence each; empty: live rollback is possible."""
        return live_limits.reasons(self.live_parts(), per_rank=self._per_rank)

    def _note_built(self) -> AsBuilt:
        self._built = AsBuilt(self._parts)
        self._beside.note_built()
        self._attributes = ModuleAttributes(self._parts)
        overrides.check(self._override, self._parts, self._built.options)
        outside_state_dict.report_unsaved(self._parts)
        self._beside.note_generators()
        are_replicas = any(module_names.parallel(item) for item in self._parts["model"])
        size = self._loader.batch_size if self._loader is not None else 0
        conditions = {**self.versions(), **({"batch_size": size} if size else {})}
        same_options.check(self._built.options, conditions, are_replicas=are_replicas)
        return self._built

    def _check_parts(self, parts: Mapping[str, Any]) -> None:
        if set(parts) != set(self._parts):
            missing, extra = sorted(set(self._parts) - set(parts)), sorted(set(parts) - set(self._parts))
            reason = f"the checkpoint lacks {missing or 'nothing'} and has {extra or 'nothing'} besides"
            raise restored.unfit("TrainState", reason)

    def _take_gradients(self) -> dict[gradients_of.Key, torch.Tensor]:
        parts = self._bare_parts()
        unreduced_gradients.refuse(parts)
        found = gradients_of.take(parts)
        if found and not self._gradients_logged:
            self._gradients_logged = True
            _logger.info(
                "event=gradients_saved count=%d bytes=%d a loop may add to them, so they are part of the state; with zero_grad() right "
                "behind optimizer.step() there are none, and the files are smaller",
                len(found),
                sum(gradient.element_size() * gradient.numel() for gradient in found.values()),
            )
        return found

    def _put_gradients(self, payload: Mapping[str, Any]) -> None:
        """Put back what the file has: files of earlier releases, and of a loop that has promised to clear them, have none."""
        unmatched = gradients_of.put(self._bare_parts(), payload.get("gradients", {}))
        if self._live_parts is not None:
            self._live_parts.gradients_are_alike = payload.get(_ALIKE) is True
        if unmatched:
            part, number, name = unmatched[0]
            raise restored.unfit(
                part, f"the checkpoint has a gradient of {name!r} of number {number} that fits no parameter"
            )

    def _bare_parts(self) -> dict[str, list[Any]]:
        return {name: [module_names.bare(item) for item in items] for name, items in self._parts.items()}
