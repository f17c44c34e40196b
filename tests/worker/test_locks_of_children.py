"""A child that was forked outlives its killed parent, and no lock of it: the next incarnation opens its store."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.store.repository import WorkerStore
from recovery.worker.exec_in_place import descriptors_of
from tests.untraced import ROOT

_OWNER = """
import asyncio, os, sys
from pathlib import Path
from recovery.core.ids import NodeId
from recovery.store import repository
from recovery.worker.local_store import LocalStore

def fork():
    if not os.fork():
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)

class Forking(repository.Database):
    def __init__(self, *arguments, **options):
        fork()
        super().__init__(*arguments, **options)

if sys.argv[2] == "while it opens":
    repository.Database = Forking

async def main():
    store = LocalStore(Path(sys.argv[1]), NodeId("w0"), accept_without_wal=False)
    store.attach(asyncio.get_running_loop(), lambda persist: None, print)
    store.open()
    if sys.argv[2] != "while it opens":
        fork()
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["while it opens", "once it is open"])
@pytest.mark.parametrize("name", ["job", "link", "job/../job"])
def test_a_child_of_a_killed_worker_keeps_no_lock(tmp_path: Path, name: str, when: str) -> None:
    (tmp_path / "job").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "job")
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / name), when],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"forked\n"
            assert owner.wait(60) == -signal.SIGKILL

            WorkerStore.open(tmp_path / "job", "w0").close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


def test_a_file_is_found_by_what_it_is_and_not_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with (tmp_path / "file").open("w") as file:
        assert descriptors_of(tmp_path / "link") == [file.fileno()]
        (tmp_path / "file").rename(tmp_path / "moved")
        assert descriptors_of(tmp_path / "moved") == [file.fileno()]
        assert descriptors_of(tmp_path / "link") == []
    assert descriptors_of(tmp_path / "moved") == []
