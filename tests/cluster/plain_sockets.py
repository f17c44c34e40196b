"""A training that knows nothing of recovery, and imports no framework: ranks add numbers over sockets, so a peer's end is an error everywhere.

Like plain_ddp.py it writes `steps_<rank>` (a line a step: its pid, the step, the restart) and, at the end, rank 0 writes `result`.
"""

import json
import os
import socket
import time
from pathlib import Path

STEPS = 30
SAVE_EVERY = 5
HERE = Path(__file__).absolute().parent
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step behind which nobody goes on before the file `go_on` is there: what a test does to the job is done by then."""
CHECKPOINT = HERE / "checkpoint.json"
SIZE = 8
MODULUS = 2**61 - 1


def data_of(rank: int, step: int) -> int:
    """What a rank adds at a step."""
    return (step * 100 + rank) ** 3


def after(weight: int, total: int) -> int:
    """The weight that a step's sum makes of the one before."""
    return (weight * 31 + total) % MODULUS


def result_of(workers: int) -> str:
    """What a training that nothing disturbs ends with."""
    weight = 0
    for step in range(1, STEPS + 1):
        weight = after(weight, sum(data_of(rank, step) for rank in range(workers)))
    return str(weight)


class World:
    """Every rank has a connection with rank 0."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank == 0:
            with socket.create_server(address) as server:
                server.settimeout(60)
                self._peers = [server.accept()[0] for _ in range(size - 1)]
        else:
            self._peers = [connected(address)]

    def close(self) -> None:
        """Leave the others."""
        for peer in self._peers:
            peer.close()

    def sum(self, value: int) -> int:
        """Of what all ranks give."""
        if self._rank:
            self._peers[0].sendall(value.to_bytes(SIZE, "big"))
            return received(self._peers[0])
        total = value + sum(received(peer) for peer in self._peers)
        for peer in self._peers:
            peer.sendall(total.to_bytes(SIZE, "big"))
        return total


def connected(address: tuple[str, int]) -> socket.socket:
    """Rank 0 may begin later."""
    for _ in range(600):
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError(f"rank 0 does not listen at {address}")


def received(peer: socket.socket) -> int:
    data = peer.recv(SIZE, socket.MSG_WAITALL)
    if len(data) < SIZE:
        # Who fails first is told by when the programs end: the cause has ended by then, on a busy machine too.
        time.sleep(0.5)
        raise ConnectionError("a peer has left")
    return int.from_bytes(data, "big")


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    world = World(rank, size)
    state = json.loads(CHECKPOINT.read_text()) if CHECKPOINT.exists() else {"weight": 0, "step": 0}
    # Nobody saves the next one before all have read this one.
    world.sum(0)
    weight = state["weight"]
    for step in range(state["step"] + 1, STEPS + 1):
        if f"{rank}@{step}" in os.environ.get("JOB_RAISE", "").split():
            world.close()
            # What a framework does at the end of a process takes its time, and so does a busy machine.
            time.sleep(float(os.environ.get("JOB_END_S", "0")))
            raise ZeroDivisionError("a mistake in the user's own code")
        weight = after(weight, world.sum(data_of(rank, step)))
        if rank == 0 and step % SAVE_EVERY == 0:
            CHECKPOINT.with_suffix(".part").write_text(json.dumps({"weight": weight, "step": step}))
            CHECKPOINT.with_suffix(".part").replace(CHECKPOINT)
        with (HERE / f"steps_{rank}").open("a") as steps:
            steps.write(f"{os.getpid()} {step} {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
        while step == HELD_STEP and not (HERE / "go_on").exists():
            time.sleep(0.02)
        time.sleep(0.05)
    if rank == 0:
        (HERE / "result").write_text(str(weight))


if __name__ == "__main__":
    main()
