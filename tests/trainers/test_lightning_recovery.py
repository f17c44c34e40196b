"""Lightning's Trainer.fit: whatever dies, the survivors keep their processes, and training ends with the same bits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed, undisturbed_runs
from tests.trainers.lightning_cluster import LightningCluster

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]
