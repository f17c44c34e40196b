"""An aborted collective of nccl ends as if it had been done: nothing that is made of what it left counts. Its world is pretended, no GPU is here."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch import distributed, nn

from recovery.errors import GenerationInterrupted
from recovery.torch import TrainState, process_group
from recovery.torch.live_memory import LiveMemory
from recovery.torch.process_group import World
from tests.torch.fake_session import FakeSession


def begun() -> tuple[nn.Module, torch.optim.Optimizer, LiveMemory]:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(net.parameters())
    memory = TrainState(model=net, optimizer=optimizer).live_memory()
    memory.begin(0)
    return net, optimizer, memory


def test_no_step_is_made_of_the_gradients_that_an_aborted_collective_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nccl ends it as if it had been done, behind the interrupt; the loop goes on to its optimizer."""
    net, optimizer, memory = begun()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    memory.boundary(1)
    session = FakeSession()
    world = World(session, "nccl", timedelta(seconds=60))
    monkeypatch.setattr(process_group, "_world", world)
    net(torch.ones(2, 4)).sum().backward()
    session._interrupted = world._aborted = True
    with pytest.raises(GenerationInterrupted):
        optimizer.step()
    assert memory.why_not() == ""
    with pytest.raises(GenerationInterrupted):
        memory.boundary(2)
    assert memory.why_not() == "its boundary was not completed"


def test_a_step_that_the_device_had_not_done_when_the_world_was_aborted_is_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps that nobody waits for are given to the device ahead of a collective that hangs, and run when it is aborted."""

    class Event:
        def __init__(self) -> None:
            self.is_done = False

        def record(self, stream: object) -> None:
            pass

        def query(self) -> bool:
            return self.is_done

    event = Event()
    _, _, memory = begun()
    world = World(FakeSession(), "nccl", timedelta(seconds=60))
    monkeypatch.setattr(process_group, "_world", world)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.distributed_c10d, "_abort_process_group", lambda: None)
    world.note_boundary(torch.device("cuda", 0))
    for is_done, why_not in (
        (False, "the device was still at its last step when the world was aborted"),
        (True, ""),
    ):
        event.is_done = is_done
        world._abort()
        assert memory.why_not() == why_not
