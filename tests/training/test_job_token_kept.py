"""The job's token in the environment of a worker: what its script starts does not find it, and a program after exec does."""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
import os, subprocess, sys
from recovery.training import process_start
from recovery.worker import exec_in_place

first = process_start.begin()
assert "MS_JOB_TOKEN" not in os.environ
child = [sys.executable, "-c", "import os; print('MS_JOB_TOKEN' in os.environ)"]
assert subprocess.run(child, capture_output=True, text=True).stdout == "False\\n"
second = process_start.begin()
assert first.job_token.reveal() == second.job_token.reveal() == sys.argv[1]
assert exec_in_place._start_environment["MS_JOB_TOKEN"] == sys.argv[1]
print("as it should be")
"""
TOKEN = "a-token-that-is-a-canary"


def test_what_a_script_starts_does_not_know_the_token() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    worker = {
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": "1",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "8118",
        "MS_JOB_TOKEN": TOKEN,
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, TOKEN],
        env={**clean, **worker},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "as it should be\n", done.stderr
