"""A client that was written from docs/reference/protocol.md alone goes from `register` to `job_ended`; what the page claims is asked of a real scheduler."""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.house.files import ROOT
from tests.pace import wait_for
from tests.protocol.client import Client, fresh_id
from tests.protocol.conftest import Scheduler
from tests.protocol.pack import pack, unpack
from tests.protocol.websocket import TEXT, Closed, Refused, WebSocket, request

PAGE = (ROOT / "docs/reference/protocol.md").read_text(encoding="utf-8")


def formed(port: int) -> tuple[Client, Client]:
    """Two workers that train in generation 1, by rank."""
    pair = Client(port, "worker_0"), Client(port, "worker_1")
    for client in pair:
        assert client.register()["incarnation"] == 1
    for client in pair:
        client.ready()
    for rank, client in enumerate(pair):
        plan = client.follow()
        assert (plan["generation"], plan["rank"], plan["step"], plan["world_size"]) == (1, rank, 0, 2)
    for rank, client in enumerate(pair):
        client.begin(rank, others=[pair[1]])
        client.step = 1
        client.send("first_step", generation=1, step=1)
    return pair


@pytest.mark.cluster
def test_a_client_made_from_the_page_does_a_whole_job_with_a_loss_and_a_resume(
    scheduler: Scheduler,
) -> None:
    first, second = formed(scheduler.port)

    # A step is committed when both hold it; a repeat of a report gets the same answer.
    held = [client.checkpoint(10) for client in (first, second)]
    report = first.ask("checkpoint_report", checkpoint=held[0])
    first.ask("checkpoint_report", checkpoint=held[0], request_id=report)
    second.ask("checkpoint_report", checkpoint=held[1])
    for client in (first, second):
        assert client.receive("committed") == {"type": "committed", "run": 1, "step": 10}

    # A wire breaks: the same process comes back by its token, and nothing has happened.
    second.drop()
    again = second.register()
    assert (again["resumed"], again["incarnation"], again["rank"], again["committed_step"]) == (
        True,
        1,
        1,
        10,
    )
    assert second.receive("rendezvous")["address"] == "127.0.0.1:1"
    first.received_nothing_else()

    # A process is gone: silent for its lease, though its socket is open.
    second.beats = False
    assert first.receive("interrupt")["generation"] == 1
    closed = second.wait_closed()
    assert (closed.code, closed.reason[:16]) == (1000, "lost: silent for")
    assert first.receive("interrupt")["generation"] == 1
    first.ready(held[0])

    # Its next process is refused until the window ends, then it is the second incarnation, of the same rank.
    relaunched = Client(scheduler.port, "worker_1")
    refused = relaunched.register()
    assert refused["code"] == "REJOIN_WINDOW"
    assert 0 < refused["retry_after_ms"] <= 40_000
    admitted = relaunched.wait_admitted()
    assert (admitted["type"], admitted.get("incarnation"), admitted.get("rank")) == ("admitted", 2, 1)
    assert second.register()["code"] == "FENCED"

    # The next plan goes back to the step that both hold.
    relaunched.ready(held[1])
    for rank, client in enumerate((first, relaunched)):
        plan = client.follow()
        assert (plan["generation"], plan["rank"], plan["step"], plan["path"]) == (
            2,
            rank,
            10,
            held[rank]["path"],
        )
    for rank, client in enumerate((first, relaunched)):
        client.begin(rank, others=[relaunched])

    # Done is a barrier.
    first.ask("done", generation=2, step=20)
    first.received_nothing_else()
    relaunched.ask("done", generation=2, step=20)
    for client in (first, relaunched):
        ended = client.receive("job_ended")
        assert ended["outcome"] == "finished"
        assert client.acknowledged > 0
    for client in (first, relaunched):
        client.disconnect()
    assert scheduler.wait_end() == 0
    assert "Traceback" not in scheduler.log()


def test_an_id_is_held_while_its_process_runs_or_may_come_back(patient: Scheduler) -> None:
    first, _ = formed(patient.port)
    impostor = Client(patient.port, "worker_0")
    assert {name: impostor.register()[name] for name in ("code", "holder_connected", "retry_after_ms")} == {
        "code": "NODE_ALIVE",
        "holder_connected": True,
        "retry_after_ms": 1000,
    }
    first.drop()
    status = "GET /status HTTP/1.1\nHost: 127.0.0.1"
    wait_for(lambda: "suspect" in request(patient.port, status)[2], "suspicion", patient.log)
    answer = impostor.register()
    assert (answer["code"], answer["holder_connected"]) == ("NODE_ALIVE", False)
    assert 0 < answer["retry_after_ms"] <= 60_000


def test_whoever_leaves_frees_its_id_and_the_others_are_interrupted(scheduler: Scheduler) -> None:
    first, second = formed(scheduler.port)
    second.ask("leave", reason="SIGTERM")
    second.disconnect()
    assert first.receive("interrupt")["reason"] == "worker_1 left: SIGTERM"
    successor = Client(scheduler.port, "worker_1").register()
    assert (successor["incarnation"], successor["rank"]) == (2, 1)


def test_the_same_request_id_is_the_holder_whose_answer_was_lost(scheduler: Scheduler) -> None:
    first = Client(scheduler.port, "worker_0")
    token = first.register()["token"]
    first.drop()
    first.token, first.incarnation = None, 0
    again = first.register()
    assert (again["type"], again["incarnation"], again["resumed"]) == ("admitted", 1, True)
    assert again["token"] != token


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "PROTOCOL_VERSION": ("worker_0", {"protocol": 99}),
    "JOB_MISMATCH": ("worker_0", {"worker_count": 3}),
    "NODE_ID_INVALID": ("7", {}),
    "UNKNOWN_TOKEN": ("worker_0", {"token": "0" * 32, "incarnation": 1}),
}


def test_refusals_are_those_of_the_page(forming: Scheduler) -> None:
    for code, (node_id, changes) in REFUSED.items():
        client = Client(forming.port, node_id, **changes)
        answer = client.register()
        assert answer["code"] == code
        closed = client.wait_closed()
        assert (closed.code, closed.reason) == (1000, f"refused: {code}")
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{code}` |"))
        asks_again = row.split("|")[3].strip() != "nothing"
        assert (answer["retry_after_ms"] is not None) == asks_again


def test_a_third_worker_finds_the_world_full(scheduler: Scheduler) -> None:
    formed(scheduler.port)
    assert Client(scheduler.port, "worker_2").register()["code"] == "WORLD_FULL"


# --- what is no conversation ---------------------------------------------------------------------------------------------


def _heartbeat() -> bytes:
    return pack({"type": "heartbeat", "sequence": 1, "generation": 0, "step": 0})


CLOSES: dict[str, tuple[int, Callable[[WebSocket], None]]] = {
    "something is said before register": (1000, lambda stream: stream.send(_heartbeat())),
    "a launcher's word": (
        1000,
        lambda stream: stream.send(pack({"type": "exited", "node_id": "worker_0", "pid": 1, "reason": "x"})),
    ),
    "text": (1008, lambda stream: stream.send(b"{}", TEXT)),
    "an unknown type": (1008, lambda stream: stream.send(pack({"type": "hello"}))),
    "a field is missing": (1008, lambda stream: stream.send(pack({"type": "heartbeat", "sequence": 1}))),
    "an array": (1008, lambda stream: stream.send(pack(["heartbeat", 1, 0, 0]))),
    "too long before admission": (1008, lambda stream: stream.send(pack({"type": "x" * 65_536}))),
    "too long for anybody": (1009, lambda stream: stream.send(pack({"type": "x" * 1_048_577}))),
    "a frame of a kind that the RFC does not know": (1002, lambda stream: stream.send(_heartbeat(), 3)),
}


def test_connections_are_closed_with_the_codes_of_the_page(forming: Scheduler) -> None:
    for what, (code, act) in CLOSES.items():
        with WebSocket(forming.port, "/cluster") as stream:
            act(stream)
            with pytest.raises(Closed) as closed:
                stream.receive()
        assert (what, closed.value.code) == (what, code)
        assert f"| {code} |" in PAGE


def test_a_key_that_is_not_known_is_ignored_and_a_default_may_be_left_out(scheduler: Scheduler) -> None:
    client = Client(scheduler.port, "worker_0", colour="green")
    assert client.register()["type"] == "admitted"
    client.ask("ready", generation=0, step=0)


def test_http_answers_are_those_of_the_page(forming: Scheduler) -> None:
    with pytest.raises(Refused) as refused:
        WebSocket(forming.port, "/cluster", "Origin: http://localhost")
    statuses = {refused.value.status}
    for text in (
        "GET /healthz HTTP/1.1\nHost: 127.0.0.1",
        "POST /healthz HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0",
        "GET /cluster HTTP/1.1\nHost: 127.0.0.1",
        "GET /nothing HTTP/1.1\nHost: 127.0.0.1",
    ):
        statuses.add(request(forming.port, text)[0])
    assert statuses == {403, 200, 405, 426, 404}
    for status in statuses - {200}:
        assert f"| {status} |" in PAGE

    listed = request(forming.port, "GET /nothing HTTP/1.1\nHost: 127.0.0.1")[2]
    routes = re.findall(r"/\w+", listed)
    assert set(routes) == {
        "/healthz",
        "/status",
        "/history",
        "/lost",
        "/generations",
        "/checkpoints",
        "/events",
        "/drain",
        "/metrics",
    }
    for route in routes:
        assert f"`{route}`" in PAGE
        status, _, body = request(forming.port, f"GET {route} HTTP/1.1\nHost: 127.0.0.1")
        assert status == 200
        if route == "/metrics":
            assert body.startswith("# HELP recovery_")
        else:
            assert body == "ok\n" if route == "/healthz" else isinstance(json.loads(body), (dict, list))


# --- the page itself -----------------------------------------------------------------------------------------------------


def test_the_page_s_example_frames_are_what_its_encoding_gives() -> None:
    shown = re.findall(r"```\n(\{.*\})\n([0-9a-f\n]+)\n```", PAGE)
    assert len(shown) == 2
    for as_json, frame in shown:
        content, raw = json.loads(as_json), bytes.fromhex(frame.replace("\n", ""))
        assert unpack(raw) == content
        assert pack(content) == raw


def test_what_the_encoder_writes_its_decoder_reads() -> None:
    numbers = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**53]
    texts = ["", "x", "é" * 20, "y" * 255, "z" * 256, "w" * 70_000]
    value = {"numbers": numbers, "texts": texts, "more": [None, True, False, {}, [], list(range(70_000))]}
    value.update({f"{number:08x}": number for number in range(20)})
    assert unpack(pack(value)) == value


def test_the_client_is_of_the_standard_library_only() -> None:
    for name in ("pack", "websocket", "client"):
        tree = ast.parse((ROOT / f"tests/protocol/{name}.py").read_text(encoding="utf-8"))
        modules = {
            module.partition(".")[0] if not module.startswith("tests.protocol.") else ""
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for module in (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
        }
        assert modules - {""} <= sys.stdlib_module_names


# --- who is let in --------------------------------------------------------------------------------------------------------


def proven(port: int, who: str, path: str, *, token: str) -> tuple[str, ...]:
    """The headers of a request, as the page says: by hand."""
    _, _, challenge = request(port, "GET /challenge HTTP/1.1\nHost: 127.0.0.1\nConnection: close")
    nonce, empty = fresh_id(), hashlib.sha256(b"").hexdigest()
    lines = "\n".join(("recovery job token 1", "client", "GET", path, who, empty, challenge, nonce))
    proof = hmac.new(token.encode(), lines.encode(), hashlib.sha256).hexdigest()
    return (f"Recovery-As: {who}", f"Authorization: Recovery-Job-Token {challenge} {nonce} {proof}")


@pytest.mark.cluster
def test_a_client_made_from_the_page_proves_that_it_belongs(closed: Scheduler) -> None:
    token = "a-token-of-the-page-0123"
    with pytest.raises(Refused) as refused:
        WebSocket(closed.port, "/cluster")
    assert refused.value.status == 401
    with pytest.raises(Refused) as refused:
        WebSocket(
            closed.port, "/cluster", *proven(closed.port, "node worker_0", "/cluster", token=token[::-1])
        )
    assert refused.value.status == 403
    stream = WebSocket(
        closed.port, "/cluster", *proven(closed.port, "node worker_0", "/cluster", token=token)
    )
    stream.send(pack({"type": "heartbeat", "sequence": 1, "generation": 0, "step": 0}))
    with pytest.raises(Closed, match="not registered"):
        stream.receive()
    stream.raw.close()
    seen = "\n".join(
        ("GET /status HTTP/1.1", "Host: 127.0.0.1", *proven(closed.port, "viewer", "/status", token=token))
    )
    assert request(closed.port, seen)[0] == 200
    assert request(closed.port, seen)[0] == 401, "a proof counts once"
    assert token not in closed.log()
