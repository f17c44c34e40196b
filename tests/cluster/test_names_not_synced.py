"""A whole job on file systems whose directories cannot be synced, as 9p, vboxsf and older CIFS: it is said once by each process, and nothing else differs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.needs import needs_tool

pytestmark = pytest.mark.cluster

_SHIM = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int descriptor) {
    struct stat found;
    if (fstat(descriptor, &found) == 0 && S_ISDIR(found.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_fsync, descriptor);
}
"""
SAID = "event=directory_not_synced "


def no_directory_is_synced(place: Path) -> str:
    """A library that, loaded first, gives such file systems' answer for every directory."""
    source, library = place / "shim.c", place / "shim.so"
    source.write_text(_SHIM)
    subprocess.run(
        [needs_tool("gcc"), "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=120
    )
    return str(library)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_killed_rank_goes_back_to_what_was_saved_there(tmp_path: Path, method: str) -> None:
    environment = {"JOB_HELD_STEP": "20", "LD_PRELOAD": no_directory_is_synced(tmp_path)}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start(f"--start_method={method}")
        cluster.wait_commit(15)
        cluster.kill_node("1")
        cluster.wait_step(19, generation=2)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert [cluster.log_of(f"worker_{rank}").count(SAID) for rank in range(2)] == [1, 2]
        assert "checkpoint_not_saved" not in cluster.log(LAUNCHER)
        assert "restored rank=1 generation=2 step=15" in cluster.log_of("worker_1")
