"""The world of a session, as Lightning asks for one."""

from __future__ import annotations

from lightning.pytorch.plugins.environments import ClusterEnvironment
from typing_extensions import override

from recovery.training.session import Session


class SessionEnvironment(ClusterEnvironment):  # type: ignore[misc]  # Lightning is not there where types are checked
    """Rank and size of the session; every rank is a node of one device. The world is formed by `recovery.torch`, so that Lightning finds one and makes none.

    Hosts may have different numbers of ranks, and a lost host's ranks may be started beside those of another, which Lightning's
    devices times nodes cannot express.
    """

    def __init__(self, session: Session) -> None:
        """Of this entry."""
        super().__init__()
        self._session = session

    @property
    @override
    def creates_processes_externally(self) -> bool:
        """The launcher has."""
        return True

    @property
    @override
    def main_address(self) -> str:
        """Nobody dials it."""
        return str(self._session.host)

    @property
    @override
    def main_port(self) -> int:
        """Nobody dials it."""
        return 0

    @staticmethod
    @override
    def detect() -> bool:
        """It is given, never found."""
        return False

    @override
    def world_size(self) -> int:
        return self._session.world_size

    @override
    def set_world_size(self, size: int) -> None:
        """The session says it."""

    @override
    def global_rank(self) -> int:
        return self._session.rank

    @override
    def set_global_rank(self, rank: int) -> None:
        """The session says it."""

    @override
    def local_rank(self) -> int:
        return 0

    @override
    def node_rank(self) -> int:
        return self._session.rank
