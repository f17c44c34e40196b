"""The table of planted bugs: every one is a mistake that somebody could make, and a test must notice it by name."""

from __future__ import annotations

from tests.planted.bug import Bug
from tests.planted.durability import DURABILITY
from tests.planted.ends import ENDS
from tests.planted.protocol import PROTOCOL
from tests.planted.rollback import ROLLBACK
from tests.planted.session import SESSION

BUGS: tuple[Bug, ...] = DURABILITY + SESSION + ROLLBACK + PROTOCOL + ENDS
