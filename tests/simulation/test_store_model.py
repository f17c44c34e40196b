"""What licenses the model: the same operations, drawn by hypothesis, on it and on a real store whose owner is killed."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

from recovery.core.ids import Rank
from recovery.core.records import CheckpointRecord, GenerationRecord, JobRecord, NodeRecord, Record
from recovery.store.reader import read_events
from recovery.store.repository import SchedulerStore
from tests.simulation.store_model import StoreModel
from tests.store import any_records

NUMBERS = st.integers(1, 5)
BATCHES = st.lists(
    st.lists(
        st.one_of(
            NUMBERS.map(any_records.checkpoint),
            NUMBERS.map(any_records.generation),
            NUMBERS.map(any_records.event),
            NUMBERS.map(lambda step: any_records.node(f"worker_{step}", rank=Rank(step), step=step)),
        ),
        min_size=1,
        max_size=5,
    ),
    max_size=4,
)


class StoreAndModel(RuleBasedStateMachine):
    """Each rule is one process of the owner. It ends by a kill; the next opens what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="model-"))
        self.model = StoreModel()
        self.generation = 0

    @rule(batches=BATCHES, kept=st.integers(0, 4))
    def dies_between_two_writes(self, batches: list[list[Record]], kept: int) -> None:
        acknowledged = self._live(batches[:kept], lambda: None)
        assert acknowledged == len(batches[:kept])
        self._take(batches[:kept])
        self._compare(self.model)

    @rule(batches=BATCHES, after_s=st.floats(0.0001, 0.02))
    def dies_at_any_moment(self, batches: list[list[Record]], after_s: float) -> None:
        acknowledged = self._live(batches, lambda: signal.setitimer(signal.ITIMER_REAL, after_s))
        self._take(batches[:acknowledged])
        further = copy.deepcopy(self.model)
        for batch in batches[acknowledged : acknowledged + 1]:
            further.commit(tuple(batch))
            further.sync()
        self.model = self._compare(self.model, further)

    @rule()
    def rises(self) -> None:
        self.generation += 1
        batch: list[Record] = [any_records.job(self.generation), any_records.event(self.generation)]
        assert self._live([batch], lambda: None) == 1
        self._take([batch])
        self._compare(self.model)

    def _take(self, batches: list[list[Record]]) -> None:
        for batch in batches:
            self.model.commit(tuple(batch))
            self.model.sync()

    def _live(self, batches: list[list[Record]], arm: Callable[[], object]) -> int:
        """Apply the batches in a process of its own that is killed; returns how many it acknowledged."""
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                store = SchedulerStore.open(self.place)
                arm()
                for batch in batches:
                    store.apply(batch, wall_ms=1)
                    os.write(theirs, b".")
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.close(theirs)
        acknowledged = b""
        while content := os.read(ours, 1_024):
            acknowledged += content
        os.close(ours)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended before it was killed"
        return len(acknowledged)

    def _compare(self, *models: StoreModel) -> StoreModel:
        """The model that the real store agrees with."""
        store = SchedulerStore.open(self.place)
        state = store.load()
        store.close()
        events = len(read_events(self.place, limit=10_000))
        found = (state.job, state.nodes, state.generations, state.checkpoints, events)
        for model in models:
            kinds = (NodeRecord, GenerationRecord, CheckpointRecord)
            if found == (model.rows.get((JobRecord,)), *(model.all(kind) for kind in kinds), model.events):
                return model
        raise AssertionError(f"the real store holds {found}, no model does")

    @override
    def teardown(self) -> None:
        shutil.rmtree(self.place)


TestStoreAndModel = StoreAndModel.TestCase
TestStoreAndModel.settings = settings(max_examples=15, stateful_step_count=6, deadline=None)
