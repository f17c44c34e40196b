"""`recovery.accelerate.run` is `recovery.run` with a backend: whatever it is given besides reaches that one, in both of its forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("accelerate.state")

from recovery.accelerate import joined_world
from recovery.training import bootstrap
from recovery.training import run as training_run

pytestmark = pytest.mark.trainers


def train() -> str:
    return "trained"


def load() -> None: ...


@pytest.mark.parametrize("as_decorator", [True, False])
def test_a_warm_up_reaches_the_run_loop(monkeypatch: pytest.MonkeyPatch, *, as_decorator: bool) -> None:
    given: list[Callable[[], object] | None] = []

    class Loop:
        """Enters without a cluster."""

        def __init__(self, settings: object, warm_up: Callable[[], object] | None = None) -> None:
            given.append(warm_up)

        def run(self, enter: Callable[[Any], object]) -> object:
            return enter(None)

    monkeypatch.setattr(training_run, "RunLoop", Loop)
    monkeypatch.setattr(training_run, "_check_is_first", lambda function: None)
    monkeypatch.setattr(training_run, "_job_of", lambda settings: ("job",))
    monkeypatch.setattr(bootstrap, "begin", lambda: None)
    run: Any = joined_world.run
    made = run(warm_up=load)(train) if as_decorator else run(train, warm_up=load)
    assert made() == "trained"
    assert given == [load]
