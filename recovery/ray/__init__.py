"""Ray: a job on the nodes of a Ray cluster, one launcher a node. A node that is lost or drained costs what it costs everywhere: its ranks come back.

May import: launch, config and everything below them, ray. The only package that knows Ray. Start reading at ray_job.py.
The public name is loaded when first used (PEP 562).

    import recovery.ray

    code = recovery.ray.run("train.py", num_workers=8, workers_per_host=4, resources_per_worker={"GPU": 1})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_names import loader

if TYPE_CHECKING:
    from recovery.ray.ray_job import run

__all__ = ["run"]

_HOMES = {"run": "recovery.ray.ray_job"}


# Hidden from type checkers: one that saw it would accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__, __dir__ = loader(__name__, _HOMES)
