"""Ray's page, tried as it stands: its driver on a real Ray, a node lost, its output, and the bits of an undisturbed job."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import page_place
from tests.cluster.page_place import check_bits, has_saved, of_a_user, text
from tests.pace import HANG_S, wait_for
from tests.ray.ray_cluster import ray_cluster
from tests.ray.test_ray_jobs import node_of
from tests.shown import block, check_shown

pytestmark = [pytest.mark.ray]
_PAGE = "docs/howto/ray.md"
_RAYS_OWN = re.compile(
    r"^(?:\x1b\[[0-9;]*m)*\(HostAgent[^)]*\)(?:\x1b\[[0-9;]*m)* |\x1b\[[0-9;]*m|(?: \[repeated| \(Ray dedup)[^\n]*",
    re.MULTILINE,
)
"""Colours, who has printed a line, and how often others have."""


def test_rays_driver_and_its_output(tmp_path: Path) -> None:
    page_place.prepare(tmp_path)
    (tmp_path / "driver.py").write_text(block(_PAGE, "import ray"))
    out = tmp_path / "out"
    with ray_cluster(3, 0, of_a_user()) as cluster:
        variables = {**cluster.environment, "RAY_ADDRESS": cluster.address}
        with (
            out.open("wb") as said,
            subprocess.Popen(
                (sys.executable, "driver.py"), cwd=tmp_path, env=variables, stdout=said, stderr=said
            ) as driver,
        ):
            try:
                wait_for(lambda: has_saved(tmp_path, 8), "first checkpoint of all", lambda: text(out))
                waits = "event=waiting for a rank to take over"
                wait_for(lambda: text(out).count(waits) >= 4, "four standbys", lambda: text(out))
                cluster.kill_node(node_of(cluster, "4"))
                page_place.go_on(tmp_path)
                assert driver.wait(HANG_S) == 0, text(out)
            finally:
                driver.kill()
    check_shown(block(_PAGE, "started scheduler"), _RAYS_OWN.sub("", text(out)))
    check_bits(tmp_path, 8)
