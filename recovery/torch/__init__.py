"""PyTorch: a world per generation, the training state, a loader that knows its position.

May import: training and everything below it, torch. The only package that knows PyTorch.
Start reading at process_group.py (how a world is formed and how its waiters are woken), then state.py, then loader.py.
Importing it registers warm-up, random generators and the errors of the data plane with the run loop.
"""

from __future__ import annotations

from torch.utils.data import DataLoader

from recovery.torch import loader_workers
from recovery.torch.collective_errors import is_collective_error
from recovery.torch.global_settings import capture_global_settings, restore_global_settings
from recovery.torch.kept_objects import kept_objects
from recovery.torch.loader import ResumableLoader
from recovery.torch.process_group import init_process_group
from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.script import join, steps
from recovery.torch.state import TrainState
from recovery.torch.step_parts import step_parts
from recovery.torch.warm_up import warm_up
from recovery.torch.world_of_one import world_of_one
from recovery.training import framework_hooks
from recovery.training.adopted_folders import AdoptFolders, adopt_folder

framework_hooks.register(
    warm_up=framework_hooks.WarmUp(warm_up, imports=("torch._dynamo",)),
    entry_states_of_it=(
        (capture_global_settings, restore_global_settings),
        (capture_random_state, restore_random_state),
    ),
    collective_error=is_collective_error,
    kept_objects_of_it=kept_objects,
)
framework_hooks.on_entry(step_parts.enter)
loader_workers.keep(DataLoader)

__all__ = [
    "AdoptFolders",
    "ResumableLoader",
    "TrainState",
    "adopt_folder",
    "init_process_group",
    "join",
    "steps",
    "world_of_one",
]
