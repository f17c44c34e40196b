"""A second loop over `steps` in one function: behind a failure nobody could tell which one a checkpoint is of, so it is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.warm.process import PLAIN, TORCH

pytestmark = pytest.mark.cluster

USAGE = 64
TWO_STATES = "the state of the first loop would be given the checkpoint of the second"
FACES = {
    "run": "recovery.run(train)()\n",
    "init": "train(recovery.init())\n",
}
LOOPS = {
    "two states": """
import recovery
from train import Tally

def train(session):
    yield_all(session.steps(Tally(), epochs=1))
    Path(f"first_{session.rank}").touch()
    for step, _ in session.steps(Tally(), epochs=2):
        Path(f"second_{session.rank}").write_text(str(step))
""",
    "one state": """
import recovery
from train import Tally

def train(session):
    state = Tally()
    yield_all(session.steps(state, epochs=1))
    Path(f"first_{session.rank}").touch()
    for step, _ in session.steps(state, epochs=2):
        Path(f"second_{session.rank}").write_text(str(step))
""",
    "three lines": """
import torch
import recovery.torch as rt
from torch.utils.data import DataLoader, TensorDataset

session = rt.join("gloo")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
yield_all(rt.steps(loader, model, optimizer, epochs=1))
Path(f"first_{session.rank}").touch()
for _ in rt.steps(loader, model, optimizer, epochs=2):
    Path(f"second_{session.rank}").touch()
""",
}
SCRIPT = """
from collections import deque
from pathlib import Path


def yield_all(steps):
    deque(steps, maxlen=0)

"""


@pytest.mark.parametrize(
    ("loops", "face", "said"),
    [
        ("two states", "run", TWO_STATES),
        ("two states", "init", TWO_STATES),
        ("one state", "run", "it would go back to where the first loop began, and train those steps again"),
        ("three lines", "", TWO_STATES),
    ],
)
def test_a_second_loop_in_one_function_is_refused_before_its_first_step(
    tmp_path: Path, loops: str, face: str, said: str
) -> None:
    with LaunchedCluster(tmp_path, imports=PLAIN if face else TORCH) as cluster:
        (tmp_path / "two.py").write_text(SCRIPT + LOOPS[loops] + FACES.get(face, ""))
        cluster.start(script="two.py")

        assert cluster.wait_exit(LAUNCHER) == USAGE, cluster.tails()
        assert "USAGE: session.steps: was called a second time" in cluster.log(LAUNCHER)
        assert said in cluster.log(LAUNCHER)
        assert list(tmp_path.glob("first_*"))
        assert not list(tmp_path.glob("second_*"))
