"""A clock that a test sets."""

from __future__ import annotations

import pytest

from recovery import clock


class Time:
    def __init__(self) -> None:
        self.now_ms = 1_000


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    moment = Time()
    monkeypatch.setattr(clock, "monotonic_ms", lambda: moment.now_ms)
    return moment
