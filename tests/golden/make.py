"""Write down what this release leaves behind, for the tests of the releases after it.

    python -m tests.golden.make 2026-11-22

makes tests/golden/2026-11-22 from the code as it is checked out: to be run before the code changes, never again for the same name.
Needs root: the job runs in name spaces of its own, so that neither a path nor a name of this machine gets into a file.

    ended.tar.xz        a small job with a killed worker and a killed scheduler, after its orderly end
    killed.tar.xz       a small job with a killed worker, every process killed later on; the stores have their -wal beside them
        recovery/           the stores of the scheduler, of each worker and (ended) of a parameter server
        ckpt/               the checkpoints with their manifests
        steps.jsonl         every step that was applied
    ended/, killed/     what every command says of them with --json, and `recovery export`
    messages.jsonl      every message of both sides, with all fields and with the required ones
    conversation.jsonl  what both workers of `ended` and their scheduler said to each other, from the first `register` to `job_ended`
    inspection.json     what a scheduler with a lost worker answers over HTTP
    words.json          settings, errors, events, states, commands, flags, keys of rows, columns of tables

The stores are packed since they are mostly empty pages.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster
from tests.golden.messages import examples
from tests.golden.views import EXPORT, JOB, VIEWS, export, inspected, view
from tests.golden.wire import RecordingProxy
from tests.golden.words import words

HERE = Path(__file__).parent
_HOST = "golden"
_KEPT = ("recovery", "ckpt", "steps.jsonl")
_INSIDE = "--inside"


def main(arguments: list[str]) -> None:
    """Enter the name spaces, then make everything."""
    [name] = [one for one in arguments if one != _INSIDE]
    if _INSIDE not in arguments:
        script = f'mount -t tmpfs tmpfs {JOB.parent} && hostname {_HOST} && exec "$@"'
        again = [sys.executable, "-m", "tests.golden.make", name, _INSIDE]
        subprocess.run(["unshare", "--mount", "--uts", "sh", "-c", script, "sh", *again], check=True)
        return
    to = HERE / name
    to.mkdir()
    make_words(to)
    make_ended(to)
    make_killed(to)
    make_inspection(to)


def make_words(to: Path) -> None:
    """What needs no job."""
    (to / "words.json").write_text(json.dumps(words(), indent=1) + "\n")
    write_lines(to / "messages.jsonl", examples())


def make_ended(to: Path) -> None:
    """A job that loses a worker and its scheduler and ends all the same; the workers speak through the recording proxy."""
    JOB.mkdir()
    with SmallCluster(JOB, servers=1) as cluster, RecordingProxy(cluster.port) as proxy:
        recorded = {"MS_SCHED_PORT": str(proxy.port)}
        for name in ("server_0", "sched"):
            cluster.launch(name)
        for name in cluster.names:
            cluster.launch(name, **recorded)
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill("worker_1")
        cluster.launch("worker_1", **recorded)
        cluster.wait_event(EventKind.FIRST_STEP_DONE, count=4)
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=5)
        cluster.kill_and_relaunch("sched")
        cluster.wait_end()
        cluster.check_result()
        frames = proxy.frames()
    write_lines(
        to / "conversation.jsonl",
        (
            {
                "connection": one.connection,
                "sender": one.sender,
                "content": msgspec.msgpack.decode(one.payload),
                "frame": one.payload.hex(),
            }
            for one in frames
        ),
    )
    keep(to / "ended")


def make_killed(to: Path) -> None:
    """The same job, with every process killed at once after its recovery."""
    JOB.mkdir()
    with SmallCluster(JOB) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_event(EventKind.FIRST_STEP_DONE, count=4)
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=4)
        cluster.kill("sched", *cluster.names)
        keep(to / "killed")


def make_inspection(to: Path) -> None:
    """A job whose second worker has died, looked at while its scheduler waits for the next one."""
    JOB.mkdir()
    (to / "inspection.json").write_text(json.dumps(inspected(JOB), indent=1) + "\n")
    shutil.rmtree(JOB)


def keep(to: Path) -> None:
    """Pack what the job has left, let every command look at it, and make room for the next job."""
    with tarfile.open(to.with_suffix(".tar.xz"), "w:xz") as packed:
        for name in _KEPT:
            packed.add(JOB / name, name)
    to.mkdir()
    # A process id means something on its own host only: what is said elsewhere is said wherever the tests run.
    socket.sethostname("elsewhere")
    for name in VIEWS:
        (to / f"{name}.json").write_text(json.dumps(view(name, JOB / "recovery"), indent=1) + "\n")
    (to / EXPORT).write_text(json.dumps(export(JOB / "recovery", JOB), indent=1) + "\n")
    socket.sethostname(_HOST)
    shutil.rmtree(JOB)


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON document a line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
