"""The script of docs/howto/large_models.md runs as it stands there, and a death in it changes no bit of what it saves."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from recovery.core.records import EventKind
from recovery.torch.shard_map import tensors_in
from tests.cluster.harness import Cluster
from tests.warm import process

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/howto/large_models.md"
LAST = "step_120"
"""640 rows, 3 epochs, 2 ranks of 8 rows a step."""
SAVES = "        if step % 20 == 0:\n"


def script() -> str:
    section = PAGE.read_text(encoding="utf-8").partition("## Folders that a framework saves")[2]
    found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


class DocumentedCluster(Cluster):
    """Workers that run the page's script, or what was made of it."""

    text = script()

    @property
    @override
    def command(self) -> Sequence[str]:
        path = self.directory / "train.py"
        if not path.exists():
            path.write_text(self.text)
        return (sys.executable, str(path))


class SlowCluster(DocumentedCluster):
    """Every step takes long enough to be in when something dies."""

    text = script().replace(SAVES, f'        __import__("time").sleep(0.03)\n{SAVES}')


def exported(cluster: Cluster) -> dict[str, Any]:
    """The last folder, by the command that errors name."""
    source, target = cluster.directory / "ckpt" / LAST, cluster.directory / "weights.pt"
    words = ["-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch", str(source), str(target)]
    done = process.run([sys.executable, *words], env=dict(os.environ), timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = torch.load(target, weights_only=True)
    return found


def test_the_pages_script_ends_with_the_same_bits_after_a_death(tmp_path: Path) -> None:
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    with DocumentedCluster(tmp_path / "undisturbed", workers=2) as cluster:
        cluster.start()
        cluster.wait_end()
        expected = exported(cluster)
        assert "goes on from" not in cluster.log("worker_0")
    with SlowCluster(tmp_path / "disturbed", workers=2) as cluster:
        assert SlowCluster.text != DocumentedCluster.text
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_end()
        found = exported(cluster)
        assert f"goes on from {tmp_path}/disturbed/ckpt/step_" in cluster.log("worker_1")
    assert {"model", "optimizer", "rank0", "rank1"} <= found.keys()
    both = dict(tensors_in(found)), dict(tensors_in(expected))
    assert both[0].keys() == both[1].keys()
    assert [at for at in both[0] if not torch.equal(both[0][at], both[1][at])] == []
