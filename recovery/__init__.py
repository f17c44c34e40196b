"""A recovery engine for data-parallel training.

The public names, loaded when first used (PEP 562), so that `import recovery` costs little and pulls in no framework.
Nothing below imports this package root; packages import each other's modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_names import loader

if TYPE_CHECKING:
    from recovery.errors import RecoveryError
    from recovery.training.callbacks import LossMonitor, ModelCheckpoint
    from recovery.training.checkpoint_config import CheckpointConfig
    from recovery.training.current import current_session
    from recovery.training.every_steps import EverySteps
    from recovery.training.init import init
    from recovery.training.run import run
    from recovery.training.secure_channel import set_ps_context
    from recovery.training.session import Callback, Session
    from recovery.training.tracker import Tracker

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "CheckpointConfig",
    "EverySteps",
    "LossMonitor",
    "ModelCheckpoint",
    "RecoveryError",
    "Session",
    "Tracker",
    "__version__",
    "current_session",
    "init",
    "run",
    "set_ps_context",
]

_HOMES = {
    "Callback": "recovery.training.session",
    "CheckpointConfig": "recovery.training.checkpoint_config",
    "EverySteps": "recovery.training.every_steps",
    "LossMonitor": "recovery.training.callbacks",
    "ModelCheckpoint": "recovery.training.callbacks",
    "RecoveryError": "recovery.errors",
    "Session": "recovery.training.session",
    "current_session": "recovery.training.current",
    "Tracker": "recovery.training.tracker",
    "init": "recovery.training.init",
    "run": "recovery.training.run",
    "set_ps_context": "recovery.training.secure_channel",
}


# Hidden from type checkers: one that saw it would accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__, __dir__ = loader(__name__, _HOMES)
