"""A node of the cluster, written from docs/reference/protocol.md alone, with the standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import queue
import socket
import threading
import time
from typing import Any

from tests.protocol.pack import pack, unpack
from tests.protocol.websocket import Closed, WebSocket

Message = dict[str, Any]
_BEAT_S = 0.5
HANG_S = 300.0
"""What takes longer does not come any more."""
_numbers = itertools.count(1)


def fresh_id() -> str:
    """32 hex digits that this process has not used: a real client draws them."""
    return f"{next(_numbers):032x}"


class Client:
    """One process of a worker, over any number of connections: a thread receives and beats, the test says the rest."""

    def __init__(self, port: int, node_id: str, **changes: Any) -> None:
        self.port, self.node_id, self._changes = port, node_id, changes
        self.request_secret = fresh_id()
        self.register_id = hashlib.sha256(self.request_secret.encode()).hexdigest()[:32]
        self.token: str | None = None
        self.incarnation = self.generation = self.step = 0
        self.run = 1
        self.beats = True
        self.acknowledged = 0
        self.closed: Closed | None = None
        self._sequence = 0
        self._received: queue.Queue[Message] = queue.Queue()
        self._overtaken: list[Message] = []
        """Interrupts that overtook the answer that was waited for."""
        self._sending = threading.Lock()
        self._socket: WebSocket
        self._thread: threading.Thread | None = None

    # --- the connection ------------------------------------------------------------------------------------------------

    def register(self) -> Message:
        """Connect and register; gives the answer."""
        self._socket = WebSocket(self.port, "/cluster")
        self.closed, self._received, self._overtaken = None, queue.Queue(), []
        self._thread = threading.Thread(
            target=self._receive_and_beat, args=(self._socket, self._received), daemon=True
        )
        self.send(
            "register",
            **{
                "request_id": self.register_id,
                "request_secret": self.request_secret,
                "protocol": 1,
                "node_id": self.node_id,
                "role": "worker",
                "host": "",
                "pid": 4711,
                "worker_count": 2,
                "server_count": 0,
                "recovery_enabled": True,
                "token": self.token,
                "incarnation": self.incarnation,
                "generation": self.generation,
                **self._changes,
            },
        )
        self._thread.start()
        return self._note(self.receive("admitted", "refused", "job_ended"))

    def wait_admitted(self) -> Message:
        """It was refused for now, and is admitted on the same connection when its time has come."""
        return self._note(self.receive("admitted"))

    def _note(self, answer: Message) -> Message:
        if answer["type"] == "admitted":
            assert answer["request_id"] == self.register_id
            self.token, self.incarnation, self.run = answer["token"], answer["incarnation"], answer["run"]
        return answer

    def drop(self) -> None:
        """Lose the connection without a word, as a broken wire does."""
        self._socket.raw.shutdown(socket.SHUT_RDWR)
        self._join()

    def disconnect(self) -> None:
        """Close, as the page says: with 1000."""
        self._socket.close()
        self._join()

    def wait_closed(self) -> Closed:
        """The scheduler ends the connection; gives how."""
        self._join()
        assert self.closed is not None
        return self.closed

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join(HANG_S)
        assert not self._thread.is_alive(), "the connection does not end"

    def _receive_and_beat(self, stream: WebSocket, received: queue.Queue[Message]) -> None:
        stream.raw.settimeout(0.05)
        admitted, next_beat = False, 0.0
        try:
            while True:
                if admitted and self.beats and time.monotonic() >= next_beat:
                    self._beat()
                    next_beat = time.monotonic() + _BEAT_S
                with contextlib.suppress(TimeoutError):
                    message = unpack(stream.receive())
                    admitted = admitted or message["type"] == "admitted"
                    if message["type"] == "heartbeat_ack":
                        self.acknowledged = message["sequence"]
                    else:
                        received.put(message)
        except Closed as closed:
            self.closed = closed
        except OSError as error:
            self.closed = Closed(0, str(error))
        finally:
            stream.raw.close()

    # --- the conversation ----------------------------------------------------------------------------------------------

    def send(self, kind: str, **fields: Any) -> None:
        """One message."""
        with self._sending:
            self._socket.send(pack({"type": kind, **fields}))

    def ask(self, kind: str, **fields: Any) -> str:
        """One message that is answered with `received`; gives its id."""
        request_id = fields.pop("request_id", fresh_id())
        self.send(kind, request_id=request_id, **fields)
        overtaken = []
        while (answer := self.receive("received", "interrupt"))["type"] == "interrupt":
            overtaken.append(answer)
        self._overtaken += overtaken
        assert answer == {"type": "received", "request_id": request_id}
        return str(request_id)

    def receive(self, *kinds: str) -> Message:
        """The next message, which must be of one of these kinds."""
        message = self._overtaken.pop(0) if self._overtaken else self._received.get(timeout=HANG_S)
        assert message["type"] in kinds, f"{self.node_id} receives {message} instead of {' or '.join(kinds)}"
        return message

    def received_nothing_else(self) -> None:
        """Nothing waits to be received."""
        assert not self._overtaken
        assert self._received.empty(), self._received.get()

    def _beat(self) -> None:
        self._sequence += 1
        self.send("heartbeat", sequence=self._sequence, generation=self.generation, step=self.step)

    def ready(self, *held: Message) -> None:
        """It has stopped, or just started, and holds these."""
        self.ask("ready", generation=self.generation, step=self.step, held=list(held))

    def follow(self) -> Message:
        """Take the plan."""
        plan = self.receive("rollback")
        assert plan["generation"] > self.generation
        self.generation, self.step = plan["generation"], plan["step"]
        return plan

    def begin(self, rank: int, others: list[Client]) -> None:
        """Form the world: rank 0 opens, the others receive where."""
        if rank == 0:
            self.send("rendezvous_open", generation=self.generation, address="127.0.0.1:1")
            for other in others:
                rendezvous = other.receive("rendezvous")
                assert rendezvous == {
                    "type": "rendezvous", "generation": self.generation, "address": "127.0.0.1:1",
                }  # fmt: skip
        self.send("state_loaded", generation=self.generation, step=self.step)

    def checkpoint(self, step: int) -> Message:
        """A checkpoint as it is reported."""
        return {
            "run": self.run,
            "generation": self.generation,
            "step": step,
            "epoch": 1,
            "step_in_epoch": step,
            "path": f"/data/{self.node_id}/{step}.ckpt",
            "digest": f"{step:064x}",
            "file_bytes": 1000,
        }
