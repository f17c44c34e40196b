"""Which end of a connection. Imports nothing: a module that only asks for it should not load the cryptography."""

from __future__ import annotations

from enum import Enum


class Side(str, Enum):
    """Which end of a connection."""

    SERVER = "server"
    CLIENT = "client"
