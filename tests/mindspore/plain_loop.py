"""MindSpore's own way to train on several devices (the loop of msrun's documents), which knows nothing of recovery: it loads its newest file.

Writes `steps_<rank>` (a line a step: its pid, the step, the restart) and, at the end, rank 0 writes `result`.
"""

import hashlib
import os
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init

STEPS = 20
SAVE_EVERY = 5
HERE = Path(__file__).absolute().parent
CHECKPOINT = HERE / "plain.ckpt"

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
init()
ms.set_seed(1)

net = nn.Dense(8, 4)
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
begin = 0
if CHECKPOINT.exists():
    state = ms.load_checkpoint(str(CHECKPOINT))
    begin = int(state.pop("step").asnumpy())
    ms.load_param_into_net(optimizer, state)
    ms.load_param_into_net(net, state)


def forward(data: ms.Tensor) -> ms.Tensor:
    return net(data).square().sum()


gradients_of = ms.value_and_grad(forward, None, net.trainable_params())
reduce = nn.DistributedGradReducer(optimizer.parameters)
rank = get_rank()
for step in range(begin + 1, STEPS + 1):
    data = ms.Tensor(np.random.default_rng(step * 100 + rank).random((16, 8), dtype=np.float32))
    _, gradients = gradients_of(data)
    optimizer(reduce(gradients))
    if rank == 0 and step % SAVE_EVERY == 0:
        named = {value.name: value for value in (*optimizer.get_parameters(), *net.get_parameters())}
        saved = [{"name": name, "data": value} for name, value in named.items()]
        ms.save_checkpoint([*saved, {"name": "step", "data": ms.Tensor(step)}], str(HERE / "part.ckpt"))
        (HERE / "part.ckpt").replace(CHECKPOINT)
    with (HERE / f"steps_{rank}").open("a") as steps:
        steps.write(f"{os.getpid()} {step} {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
    time.sleep(0.1)
if rank == 0:
    weights = b"".join(value.asnumpy().tobytes() for value in net.get_parameters())
    (HERE / "result").write_text(hashlib.sha256(weights).hexdigest())
