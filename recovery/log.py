"""The event lines: one line per event, key=value, the same words as in the events table."""

from __future__ import annotations
