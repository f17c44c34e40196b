"""A training that knows nothing of recovery: DistributedDataParallel as in PyTorch's tutorials, started by torchrun or alike.

Writes `steps_<rank>` (a line a step: its pid, the step) and, at the end, rank 0 writes `result` (the digest of the weights).
"""

import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 30
SAVE_EVERY = 5
HERE = Path(__file__).absolute().parent
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step behind which nobody goes on before the file `go_on` is there: what a test does to the job is done by then."""
CHECKPOINT = HERE / "checkpoint.pt"


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    # One parameter: DDP lays its buckets out again after the first pass of every process, and a value's place in a ring of three
    # decides the order of additions. With a bias as well some processors' last bits differ after a restart.
    model = DistributedDataParallel(torch.nn.Linear(8, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    begin = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    for step in range(begin + 1, STEPS + 1):
        if f"{rank}@{step}" in os.environ.get("JOB_RAISE", "").split():
            raise ZeroDivisionError("a mistake in the user's own code")
        data = torch.rand(16, 8, generator=torch.Generator().manual_seed(step * 100 + rank))
        optimizer.zero_grad()
        model(data).square().sum().backward()
        optimizer.step()
        if rank == 0 and step % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, CHECKPOINT.with_suffix(".part"))
            CHECKPOINT.with_suffix(".part").replace(CHECKPOINT)
        with (HERE / f"steps_{rank}").open("a") as steps:
            steps.write(f"{os.getpid()} {step} {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
        while step == HELD_STEP and not (HERE / "go_on").exists():
            time.sleep(0.02)
        time.sleep(0.05)
    if rank == 0:
        weights = b"".join(value.numpy().tobytes() for value in model.module.state_dict().values())
        (HERE / "result").write_text(hashlib.sha256(weights).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
