"""A cluster whose workers run lightning_job.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from tests.cluster.harness import Cluster
from tests.warm.process import PLAIN

JOB = Path(__file__).with_name("lightning_job.py")


class LightningCluster(Cluster):
    """Use as a cluster; `check` is its proof."""

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return PLAIN

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, str(JOB))

    @override
    def __enter__(self) -> LightningCluster:
        return self
