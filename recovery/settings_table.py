"""The table of settings: one row per variable of the environment."""

from __future__ import annotations
