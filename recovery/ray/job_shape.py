"""What is asked of a Ray cluster, and what each of its hosts runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from recovery.errors import UsageError


class Shape(NamedTuple):
    """So many nodes, each with one launcher."""

    hosts: int
    spares: int
    workers_per_host: int
    resources: Mapping[str, float]
    """Of one host, by Ray's names."""

    @property
    def nodes(self) -> int:
        """Those that wait among them."""
        return self.hosts + self.spares

    def words(self, node_rank: int, endpoint: str, line: Sequence[str]) -> tuple[str, ...]:
        """What `recovery run` is given on a host."""
        return (
            f"--nnodes={self.hosts}",
            f"--nproc_per_node={self.workers_per_host}",
            f"--spares={self.spares}",
            f"--node_rank={node_rank}",
            f"--rdzv_endpoint={endpoint}",
            *line,
        )


def shape_of(
    *,
    num_workers: int,
    workers_per_host: int,
    resources_per_worker: Mapping[str, float] | None,
    spares: int,
) -> Shape:
    """Check the numbers, and add them up.

    Raises:
        UsageError: they do not fit together.
    """
    for field, value, least in (
        ("num_workers", num_workers, 1),
        ("workers_per_host", workers_per_host, 1),
        ("spares", spares, 0),
    ):
        if value < least:
            raise _refused(field, f"{value} is below {least}", f"Give at least {least}.")
    if num_workers % workers_per_host:
        raise _refused(
            "num_workers",
            f"{num_workers} is no multiple of workers_per_host={workers_per_host}",
            "Give every host as many workers.",
        )
    of_one = {"CPU": 1.0} if resources_per_worker is None else resources_per_worker
    for name, amount in of_one.items():
        if amount < 0:
            raise _refused(
                "resources_per_worker", f"{name}: {amount:g} is below 0", "Give what one worker needs of it."
            )
    return Shape(
        hosts=num_workers // workers_per_host,
        spares=spares,
        workers_per_host=workers_per_host,
        resources={name: amount * workers_per_host for name, amount in of_one.items() if amount},
    )


def _refused(field: str, reason: str, next_step: str) -> UsageError:
    return UsageError(field=field, reason=reason, next_step=next_step)
