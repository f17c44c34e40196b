"""The dashboard and the alert rules of the examples ask for metrics, labels and words that there are, and show all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from recovery.report.metrics import METRICS, Kind, Metric
from tests.house.files import ROOT

FOLDER = ROOT / "examples/prometheus"
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that every metric has, or every bucket."""
_SELECTOR = re.compile(r"\b(recovery_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def by_name() -> dict[str, Metric]:
    """Everything that can be asked for."""
    found = {row.name: row for row in METRICS if row.kind is not Kind.HISTOGRAM}
    histograms = [row for row in METRICS if row.kind is Kind.HISTOGRAM]
    return found | {f"{row.name}_{end}": row for row in histograms for end in ("bucket", "sum", "count")}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return found


def of_dashboard() -> list[str]:
    document = json.loads((FOLDER / "dashboard.json").read_text())
    variables = [one["query"]["query"] for one in document["templating"]["list"] if one["type"] == "query"]
    return [*variables, *(target["expr"] for panel in panels() for target in panel["targets"])]


def of_alerts() -> list[str]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def wrong(expression: str) -> Iterator[str]:
    """What an expression asks for that is not there."""
    there = by_name()
    asked = _SELECTOR.findall(expression)
    for name, matchers in asked:
        row = there.get(name)
        if row is None:
            yield f"no metric {name}"
            continue
        for label, how, value in _MATCHER.findall(matchers):
            if label not in OF_PROMETHEUS | {row.label}:
                yield f"{name} has no label {label}"
            if label == row.label:
                words = value.split("|") if "~" in how else [value]
                yield from (f"{name} has no {label} {word!r}" for word in words if word not in row.words)
    for labels in re.findall(r"(?:by|without|ignoring|on) ?\(([^)]*)\)", expression):
        known = OF_PROMETHEUS | {there[name].label for name, _ in asked if name in there}
        yield from (f"no label {one}" for one in re.split(r", *", labels) if one not in known)


@pytest.mark.parametrize("expression", [*of_dashboard(), *of_alerts()])
def test_every_expression_asks_for_what_there_is(expression: str) -> None:
    assert "recovery" in expression
    assert list(wrong(expression)) == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("recovery_steps", "no metric recovery_steps"),
        ("recovery_badput_seconds", "no metric recovery_badput_seconds"),
        ('recovery_nodes{kind="lost"}', "recovery_nodes has no label kind"),
        ('recovery_nodes{state="dead"}', "recovery_nodes has no state 'dead'"),
        (
            'recovery_restarts_total{cause!~"stopped|drained"}',
            "recovery_restarts_total has no cause 'drained'",
        ),
        ("sum without (kind) (recovery_restarts_total)", "no label kind"),
    ],
)
def test_a_wrong_expression_is_found(expression: str, said: str) -> None:
    assert list(wrong(expression)) == [said]


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for one in of_dashboard() for name, _ in _SELECTOR.findall(one)}
    assert {by_name()[name].name for name in shown} == {row.name for row in METRICS}


def test_no_panel_lies_on_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]
    assert len({panel["id"] for panel in panels()}) == len(panels())
