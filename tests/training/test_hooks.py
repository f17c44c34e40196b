"""What a process warms up, and when."""

from __future__ import annotations

import pytest

from recovery.training import framework_hooks
from recovery.training.framework_hooks import WarmUp


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    here = WarmUp(lambda: calls.append("its modules are here"), imports=("asyncio", "json"))
    missing = WarmUp(lambda: calls.append("one is missing"), imports=("json", "no_such_module"))
    monkeypatch.setattr(framework_hooks, "warm_ups", [here, missing])
    return calls


def warm_up(called: list[str], *, planned: bool) -> None:
    def is_planned(within_s: float) -> bool:
        assert within_s > 0
        called.append("looked for the plan")
        return planned

    framework_hooks.warm_up((lambda: called.append("the script's own"),), is_planned)


def test_what_imports_nothing_any_more_is_left_out_where_the_plan_comes_at_once(called: list[str]) -> None:
    warm_up(called, planned=True)
    assert called == ["one is missing", "the script's own", "looked for the plan"]


def test_who_has_to_wait_warms_up_wholly(called: list[str]) -> None:
    warm_up(called, planned=False)
    assert called == ["one is missing", "the script's own", "looked for the plan", "its modules are here"]


def test_nobody_looks_for_the_plan_where_all_is_done(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework_hooks, "warm_ups", framework_hooks.warm_ups[1:])
    warm_up(called, planned=False)
    assert called == ["one is missing", "the script's own"]
