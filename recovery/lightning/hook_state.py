"""What the hooks of an epoch's begin and end have set: a rollback into the epoch leaves them out, and to repeat one would do a part of it twice.

Kept are numbers, text and tensors, in lists and dicts too, as attributes: of the module and of the user's callbacks wherever they change (of
submodules too: recovery/torch/module_attributes.py), of the data and of the Trainer where such a hook changes them. Also what no state_dict has, and the schedule of
StochasticWeightAveraging. What changes and is none of these is named (`event=hook_state_not_kept`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar, StochasticWeightAveraging
from torchmetrics import Metric

from recovery.lightning import beside_fit, pruned_weights
from recovery.torch import module_attributes, outside_state_dict
from recovery.torch.attribute_values import Opaque, is_users, root
from recovery.torch.kept_attributes import KeptAttributes, Look, Place, with_inside
from recovery.torch.outside_folders import OutsideFolders

_logger = logging.getLogger("recovery.lightning")

_HOOKS = ("on_train_epoch_start", "finetune_function")
_OF_TORCH = frozenset(vars(torch.nn.Module())) - {"training"}
_OF_MODULE = frozenset(vars(LightningModule())) - {"training"} | {"forward"}
"""Lightning's strategies put another `forward` there for the time of a step."""
_OF_LOOPS = {
    "_FitLoop": ("max_batches", "max_epochs", "min_epochs", "_last_train_dl_reload_epoch"),
    "_AutomaticOptimization": ("_skip_backward",),
}
_OF_DATA = ("dataset", "sampler", "batch_sampler", "collate_fn")
_STRUCTURE = "(parameters, buffers, modules or forward hooks)"


class HookState:
    """Of one `fit`."""

    def __init__(self, trainer: Trainer, loaders: Callable[[], list[Any]]) -> None:
        """Nothing has changed yet. `loaders` gives those of the training."""
        self._trainer, self._loaders = trainer, loaders
        self._kept = KeptAttributes(_attributes, self._name)
        self._named: set[Place] = set()
        self._baseline: Look | None = None
        self._prepared: Look = {}
        self._outside = OutsideFolders(dict)
        self.saved: dict[str, Any] | None = None
        """As `take` gave it, to be put back; None: training begins."""
        self.options: list[list[dict[str, Any]]] = []
        """Of each optimizer's groups, in the same checkpoint."""

    def begin_epoch(self, plain: Callable[[], None]) -> None:
        """Call what calls the hooks of an epoch's begin, or leaves them out where an epoch goes on; then they are made up for."""
        if self._baseline is None:
            # Every hook of the training's beginning has run. What it sets, it sets at each start, but that may follow from where training stands.
            self._baseline = self._look(at_saves=True)
            self._kept.note(self._prepared, self._baseline, names=False)
            attributes = None if self.saved is None else self.saved["attributes"]
            self._kept.begin(dict(self._holders()), attributes, self._trainer.strategy.root_device)
            self._outside.begin()
            self._name_hooks()
        self.watch(plain)
        if self.saved is not None:
            self._put_back(self.saved)
            self.saved = None

    def _name_hooks(self) -> None:
        trainer = self._trainer
        # Lightning's LambdaCallback has hooks of the user's, and attributes of nobody's.
        callbacks = ((beside_fit.key_of(trainer, one), one) for one in trainer.callbacks)
        called = [("module", trainer.lightning_module), *callbacks]
        hooks = [hook for key, holder in called for hook in _users_hooks(key, holder)]
        if hooks:
            _logger.info(
                "event=epoch_hooks_left_out hooks=%s are not called again behind a rollback into an epoch: numbers, text and tensors that they set as "
                "attributes of module, callbacks, data and Trainer are kept. Whatever else they do belongs into on_train_batch_start",
                ",".join(hooks),
            )

    def watch(self, hooks: Callable[[], None]) -> None:
        """Call what calls such hooks, and note what they change."""
        before = self._look()
        hooks()
        self._kept.note(before, self._look())

    def take(self) -> dict[str, Any]:
        """For a checkpoint: tensors are not copied; as long as nobody trains on they do not change."""
        self._kept.note(self._baseline or {}, self._look(at_saves=True))
        module = self._trainer.lightning_module
        pruned = pruned_weights.take(self._trainer)
        return {
            "attributes": self._kept.take(dict(self._holders())),
            "outside": self._outside.take(is_compared=not pruned),
            "pruned": pruned,
            "momenta": [
                {name: one.momenta[inner] for name, inner in module.named_modules() if inner in one.momenta}
                for one in _averaging(self._trainer)
            ],
        }

    def prepared(self) -> None:
        """Lightning has module and optimizers, and loads the states of these next: they get the groups that hooks have added."""
        trainer, module = self._trainer, self._trainer.lightning_module
        frozen = [outside_state_dict.frozen(module)]
        known = module_attributes.ids_of([module])
        self._prepared = self._kept.prepare(self._holders(at_saves=True), known)
        if self.saved is not None:
            pruned_weights.put(trainer, self.saved["pruned"])
        self._outside = OutsideFolders(
            lambda: {"model": [trainer.model], "optimizer": trainer.optimizers},
            frozen=frozen,
            is_whole=True,
            beside=beside_fit.of(trainer, self._loaders),
        )
        if self.saved is not None:
            self._outside.make_room(self.saved["outside"])

    def _put_back(self, saved: dict[str, Any]) -> None:
        trainer, holders = self._trainer, dict(self._holders())
        self._outside.put(saved["outside"])
        attributes = saved["attributes"]
        modules = dict(trainer.lightning_module.named_modules())
        for callback, momenta in zip(_averaging(trainer), saved["momenta"], strict=False):
            if attributes.get((beside_fit.key_of(trainer, callback), "_initialized"), {}).get("value"):
                _begin_averaging(trainer, callback)
            callback.momenta = {modules[name]: momentum for name, momentum in momenta.items()}
        self._kept.put(holders, attributes, trainer.strategy.root_device)
        # The schedule that was begun has set others.
        for optimizer, options in zip(trainer.optimizers, self.options, strict=False):
            for group, of in zip(optimizer.param_groups, options, strict=False):
                group.update(of)

    def _holders(self, *, at_saves: bool = False) -> Iterator[tuple[str, Any]]:
        """Whose attributes are looked at, by a name that is the same at each start; of these, those that are looked at in each save."""
        trainer = self._trainer
        yield "module", trainer.lightning_module
        for callback in trainer.callbacks:
            is_looked_at = is_users(callback) or isinstance(callback, StochasticWeightAveraging)
            if is_looked_at and not isinstance(callback, (Checkpoint, ProgressBar)):
                yield beside_fit.key_of(trainer, callback), callback
        if trainer.datamodule is not None:
            yield "datamodule", trainer.datamodule
        if at_saves:
            return
        for name, module in trainer.lightning_module.named_modules():
            if name and not isinstance(module, Metric):
                yield f"module.{name}", module
        for number, loader in enumerate(self._loaders()):
            yield from _of_data(f"loader_{number}", loader)
        yield "trainer", trainer
        yield "fit_loop", trainer.fit_loop
        yield "optimization", trainer.fit_loop.epoch_loop.automatic_optimization

    def _look(self, *, at_saves: bool = False) -> Look:
        known = module_attributes.ids_of([self._trainer.lightning_module])
        return self._kept.look(self._holders(at_saves=at_saves), known)

    def _name(self, place: Place, holder: Any, value: Any) -> None:
        if place in self._named or beside_fit.keeps_its_own(holder) or root(type(holder)) == "lightning":
            return
        self._named.add(place)
        _logger.warning(
            "event=hook_state_not_kept attribute=%s.%s reason='training changes it, and it is no number, text or tensor, or a large one (%s)': behind a "
            "rollback it is as the script builds it. If the next steps depend on it, put it into on_save_checkpoint and on_load_checkpoint, or set it "
            "in on_train_batch_start",
            *place,
            "of an object" if type(value) is Opaque else type(value).__qualname__,
        )


def _attributes(holder: Any, known: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """With what objects and modules hold that it holds; `known` are ids of tensors that are in the checkpoint."""
    is_module = isinstance(holder, torch.nn.Module)
    left_out = {*(_OF_MODULE if isinstance(holder, LightningModule) else _OF_TORCH if is_module else ())}
    left_out.update(pruned_weights.names_of(holder) if is_module else ())
    only = _OF_LOOPS.get(type(holder).__name__)
    for name, value in vars(holder).items():
        is_own = name in only if only else not (isinstance(holder, Trainer) and name.startswith("_"))
        if not is_own or name in left_out:
            continue
        yield from with_inside(name, value, known, objects=not isinstance(holder, Trainer))
    if is_module:
        yield _STRUCTURE, Opaque(pruned_weights.structure(holder))


def _of_data(key: str, loader: Any) -> Iterator[tuple[str, Any]]:
    """What a loader reads with, and whatever a wrapper such as torch's Subset wraps."""
    if is_users(loader):
        yield key, loader
    for name in _OF_DATA:
        part, place = getattr(loader, name, None), f"{key}.{name}"
        for _ in range(3):
            if is_users(part) or _is_of_torchs_data(part):
                yield place, part
            part, place = getattr(part, "__dict__", {}).get("dataset"), f"{place}.dataset"


def _is_of_torchs_data(found: Any) -> bool:
    """A Subset, a sampler: a hook may give it other indices or weights."""
    return hasattr(found, "__dict__") and type(found).__module__.startswith("torch.utils.data.")


def _users_hooks(key: str, holder: Any) -> Iterator[str]:
    name = type(holder).__qualname__ if key == "module" else key
    yield from (f"{name}.{hook}" for hook in _HOOKS if beside_fit.is_overridden(holder, hook))


def epochs_of_averaging(trainer: Trainer, module: LightningModule) -> int:
    """How many are trained behind the last one, for statistics of the averaged weights. The callback says so later, in `on_fit_start`."""
    return sum(one.pl_module_contains_batch_norm(module) for one in _averaging(trainer))


def _averaging(trainer: Trainer) -> list[StochasticWeightAveraging]:
    return [one for one in trainer.callbacks if isinstance(one, StochasticWeightAveraging)]


def _begin_averaging(trainer: Trainer, callback: Any) -> None:
    """Have its schedule take the place of the script's, as where averaging begins; nothing is averaged."""
    was = callback._max_epochs, callback._latest_update_epoch  # noqa: SLF001 - of Lightning 2.6; what its hook asks
    callback._max_epochs, callback._latest_update_epoch = trainer.current_epoch + 1, trainer.current_epoch  # noqa: SLF001 - as above
    StochasticWeightAveraging.on_train_epoch_start(callback, trainer, trainer.lightning_module)
    callback._max_epochs, callback._latest_update_epoch = was  # noqa: SLF001 - as above
