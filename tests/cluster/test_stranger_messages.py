"""A stranger on the port of a job that trains, with every message there is and the best guesses: nobody of the job notices."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.core.principals import PrincipalKind
from recovery.core.records import EventKind
from recovery.transport.job_token import CHALLENGE_PATH, Caller, JobToken
from tests.cluster.small_cluster import LAST_STEP, SmallCluster
from tests.golden.messages import classes, examples
from tests.transport.wire import HANDSHAKE, HOST, masked_frame, plain_socket

pytestmark = pytest.mark.cluster

TIMES = 1_000
WORKERS = ("worker_0", "worker_1")
TRAINING = {"JOB_STEP_MS": "100", "JOB_HELD_STEP": str(LAST_STEP - 2)}
"""It trains while the stranger speaks, and does not end before it has."""
REQUEST = HANDSHAKE.replace(b"Host: x", b"Host: " + HOST.encode())
VIEWS = ("/status", "/events", "/nodes", "/plan")


def every_message(cluster: SmallCluster) -> list[tuple[str, bytes]]:
    """One of each, by its tag, about the job's own processes: their ids, process ids and generation, as far as anybody can guess them."""
    pids = {name: cluster.processes[name].pid for name in WORKERS}
    made: list[tuple[str, bytes]] = []
    for row in examples():
        if row["sender"] == "node":
            node = WORKERS[len(made) % len(WORKERS)]
            guessed: dict[str, Any] = {"node_id": node, "pid": pids[node], "generation": 1, "gives_up": True}
            content = {name: guessed.get(name, value) for name, value in row["content"].items()}
            made.append((content["type"], masked_frame(msgspec.msgpack.encode(content))))
    return made


def proofs(cluster: SmallCluster, token: JobToken) -> Iterator[bytes]:
    """The request for a worker's connection, with what another token proves of it."""
    while True:
        connection = http.client.HTTPConnection(HOST, cluster.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", CHALLENGE_PATH)
            challenge = connection.getresponse().read().decode()
        headers = Caller(PrincipalKind.NODE, WORKERS[0], token).answer(challenge, "GET", "/cluster").headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        yield REQUEST.removesuffix(b"\r\n") + lines.encode() + b"\r\n"


def say(cluster: SmallCluster, request: bytes, frames: bytes) -> bytes:
    """Say all of it without waiting for an answer; gives the first line of what came back."""
    heard = b""
    with plain_socket(cluster.port) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(request + frames)
        while piece := peer.recv(65_536):
            heard += piece
    return heard.partition(b"\r\n")[0]


def seen(cluster: SmallCluster) -> list[dict[str, Any]]:
    return [
        {name: cluster.seen(worker)[name] for name in ("pid", "entries", "incarnation", "generation")}
        for worker in WORKERS
    ]


def test_every_message_of_a_stranger_a_thousand_times_changes_nothing(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment=TRAINING) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= 3, "step 3 of all")
        before = seen(cluster)
        messages = every_message(cluster)
        assert {tag for tag, _ in messages} == set(classes("node"))
        frames = b"".join(frame for _, frame in messages)
        other = proofs(cluster, JobToken("a-token-of-another-job-0123"))
        answers: Counter[bytes] = Counter()
        for number in range(TIMES):
            answers[say(cluster, next(other) if number % 10 == 0 else REQUEST, frames)] += 1
        # Where the answer is lost in the reset that data behind it causes, nothing was heard at all.
        assert sum(answers.values()) == TIMES
        assert {line[:12] for line in answers} <= {b"HTTP/1.1 401", b"HTTP/1.1 403", b""}, answers
        assert {
            say(cluster, f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(), b"")[:12] for path in VIEWS
        } == {b"HTTP/1.1 401"}
        assert cluster.processes["sched"].poll() is None

        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
        assert cluster.generations() == {1}
        assert seen(cluster) == before
        for kind in (
            EventKind.NODE_SUSPECTED,
            EventKind.NODE_REFUSED,
            EventKind.GENERATION_INTERRUPTED,
        ):
            assert cluster.events(kind) == []
        # One line a minute about an address, whatever it does.
        assert 1 <= cluster.log("sched").count("event=peer_refused") <= 5, json.dumps(
            dict.fromkeys(map(str, answers))
        )
