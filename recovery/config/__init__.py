"""The environment: settings read once, checked, each with its source. `recovery.config.load()` gives them.

May import: core (the durations and limits are its `Rules`), errors. Only settings.py reads os.environ.
Start reading at table.py (one row per variable), then reader.py (one reader per kind of row), then settings.py (the rules that join
several variables). foreign_launchers.py and rank_table.py translate other ways to start a job into the same variables.
"""

from __future__ import annotations

from recovery.config.settings import MemorySettings as MemorySettings
from recovery.config.settings import SecureChannel as SecureChannel
from recovery.config.settings import Settings as Settings
from recovery.config.settings import SettingsRole as SettingsRole
from recovery.config.settings import load as load
from recovery.config.settings import memory_base as memory_base
from recovery.config.settings import secure_channel as secure_channel
from recovery.config.settings import under_pytest as under_pytest
