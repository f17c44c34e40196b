"""The job's token in the environment of a worker: what its script starts does not find it, and a program after exec does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

_PROGRAM = """
import os, subprocess, sys
from recovery.training import bootstrap
from recovery.worker import exec_in_place

first = bootstrap.begin()
assert "MS_JOB_TOKEN" not in os.environ
child = [sys.executable, "-c", "import os; print('MS_JOB_TOKEN' in os.environ)"]
assert subprocess.run(child, capture_output=True, text=True).stdout == "False\\n"
second = bootstrap.begin()
assert first.job_token.reveal() == second.job_token.reveal() == sys.argv[1]
assert exec_in_place._start_environment["MS_JOB_TOKEN"] == sys.argv[1]
print("as it should be")
"""
_RANK_0 = """
import sys, psutil
from recovery.training import bootstrap

def token_of_its_scheduler():
    [child] = psutil.Process().children()
    # The kernel tells its parent that a program runs before its environment can be read.
    while not (variables := child.environ()):
        pass
    found = variables.get("MS_JOB_TOKEN")
    child.kill()
    child.wait()
    return found

for _ in range(2):
    bootstrap.begin()
    assert token_of_its_scheduler() == sys.argv[1]
print("as it should be")
"""
TOKEN = "a-token-that-is-a-canary"


def _run(program: str, variables: dict[str, str]) -> None:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MS_", "OMPI_", "RANK_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", program, TOKEN],
        env={**clean, **variables, "MS_JOB_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("as it should be\n"), done.stderr


def test_what_a_script_starts_does_not_know_the_token() -> None:
    _run(
        _PROGRAM,
        {
            "MS_ROLE": "MS_WORKER",
            "MS_WORKER_NUM": "1",
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": "8118",
        },
    )


def test_every_scheduler_that_rank_0_starts_knows_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _run(
        _RANK_0,
        {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            "MS_SCHED_PORT": str(port),
        },
    )
