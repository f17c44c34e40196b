"""A job in one line: what it trains, or what it waits for and for how long. For the launcher's terminal, `recovery status` and `recovery top`. Pure.

Views are those of a running scheduler (`recovery.core.scheduler.views.job_view`); what an older one does not say is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from recovery.core.records import JobState, NodeState

_NAMED_MAX = 3
"""Ranks that are named; of more it is said how many there are."""
_WINDOW_MS = 60_000
"""The pace is that of the last minute: ranks tell their steps every few seconds, each at its own time."""
BAR = 10
"""Cells."""
_MINUTE, _HOUR = 60, 3600


class Training(NamedTuple):
    """How far training is."""

    step: int
    epoch: int | None = None
    """None: nobody says; so of the next two."""
    total_steps: int | None = None
    loss: float | str | None = None
    """A text where it is no number: nan, inf."""


class Start(NamedTuple):
    """A process that this host has started, or is about to."""

    how: str
    """fork or spawn; empty: it does not run yet."""
    for_ms: int


class Part(NamedTuple):
    """A piece of a line."""

    text: str
    weight: int
    """What weighs least is left out first where a line is too long."""


class Pace:
    """Steps per second, over the last minute in which steps were seen."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._seen: deque[tuple[int, int]] = deque()
        """Steps, and when each was seen first."""
        self._per_s = 0.0

    def note(self, step: int, now_ms: int) -> float:
        """Take the step as seen now; gives the pace. Behind a rollback it waits for the next step."""
        seen = self._seen
        if seen and step < seen[-1][0]:
            seen.clear()
        if not seen or step != seen[-1][0]:
            seen.append((step, now_ms))
            while len(seen) > 2 and now_ms - seen[0][1] > _WINDOW_MS:  # noqa: PLR2004 - a pace needs two
                seen.popleft()
            (first, first_ms), (newest, newest_ms) = seen[0], seen[-1]
            if newest > first:
                self._per_s = (newest - first) * 1000 / max(1, newest_ms - first_ms)
        return self._per_s

    def forget(self) -> None:
        """No step is made for a while: that time does not count."""
        self._seen.clear()


def training_of(view: Mapping[str, Any]) -> Training:
    """How far the ranks are; epoch, end and loss as the first one says that does."""
    ranks = _ranks(view)
    told = {
        key: next((node[key] for node in ranks if node.get(key) is not None), None)
        for key in ("epoch", "total_steps", "loss")
    }
    return Training(max((node["step"] for node in ranks), default=0), **told)


def is_waiting(view: Mapping[str, Any]) -> bool:
    """Does the job wait for ranks, or for their first step? Of a script that tells none nobody knows when it comes."""
    is_running = view["state"] == JobState.RUNNING.value
    if is_running and not view.get("tells_steps", True):
        return False
    return not view.get("trains", is_running) and not _is_over(view)


def waits_for(view: Mapping[str, Any], starts: Mapping[str, Start] | None = None) -> list[str]:
    """What a job that does not train waits for; empty: nothing.

    Args:
        view: of the job.
        starts: the processes of this host by the first node id of their slot; None: nobody knows.
    """
    if not is_waiting(view):
        return []
    starts = starts or {}
    if view["state"] == JobState.FORMING.value:
        return _forming(view, starts)
    began = view.get("began_at_step", 0)
    awaited: dict[str, list[int]] = {}
    for node in _ranks(view):
        if node.get("rank") is not None and (why := _why(view, node, starts, began)) is not None:
            awaited.setdefault(why, []).append(node["rank"])
    return [f"{_named(ranks)}{why}" for why, ranks in awaited.items()]


def parts_of(
    view: Mapping[str, Any], pace: Pace, now_ms: int, starts: Mapping[str, Start] | None = None
) -> list[Part]:
    """The line, in its order.

    Args:
        view: of the job.
        pace: as it was seen so far.
        now_ms: on the monotonic clock.
        starts: as of `waits_for`.
    """
    ranks = _ranks(view)
    here = sum(node["state"] == NodeState.LIVE.value for node in ranks)
    world = Part(f"{here}/{view['world_size']} ranks", 2)
    generation = Part(f"generation {view['generation']}", 1)
    training = training_of(view)
    if is_waiting(view):
        pace.forget()
        is_first = view["state"] == JobState.FORMING.value or (
            view["generation"] == 1 and view["state"] == JobState.RUNNING.value
        )
        what = "starting" if is_first else "recovering"
        waits_ms = view.get("waits_ms")
        waited = f" {duration(waits_ms / 1000)}" if waits_ms is not None else ""
        awaited = [f"waiting for {', '.join(names)}"] if (names := waits_for(view, starts)) else []
        reason = [Part(view["reason"], 0)] if view["reason"] else []
        began = view.get("began_at_step", 0)
        back = [Part(f"from step {began}", 3)] if began and view["state"] == JobState.RUNNING.value else []
        return [
            Part(f"{what}{waited}", 8),
            *(Part(text, 9) for text in awaited),
            *back,
            world,
            generation,
            *reason,
        ]
    if not view.get("tells_steps", True):
        what = view["state"] if _is_over(view) else "training, by a script that tells no steps"
        return [Part(what, 9), world, generation]
    if _is_over(view):
        return [Part(view["state"], 9), *training_parts(training, 0.0), world, generation]
    hang = [Part(text, 8)] if (text := hang_of(view)) else []
    return [*training_parts(training, pace.note(training.step, now_ms)), *hang, world, generation]


def hang_of(view: Mapping[str, Any]) -> str:
    """Which rank may hang, and where; empty: none is suspected."""
    hang = view.get("hang")
    if hang is None:
        return ""
    at = f"in {hang['phase']} behind step {hang['step']}"
    at = f"it has left out {hang['left_out']} of the collectives" if hang["left_out"] else at
    limit = f"{duration(hang['lasting_ms'] / 1000)}, its limit is {duration(hang['limit_ms'] / 1000)}"
    return f"rank {hang['rank']} may hang: {at} for {limit}"


def leaving_of(view: Mapping[str, Any]) -> str:
    """Who is asked to leave, how long that may take, and why; empty: nobody."""
    leaving = view.get("leaving")
    if leaving is None:
        return ""
    who = "the whole job" if leaving["whole_job"] else ", ".join(leaving["nodes"][:_NAMED_MAX])
    if not leaving["whole_job"] and len(leaving["nodes"]) > _NAMED_MAX:
        who += f" and {len(leaving['nodes']) - _NAMED_MAX} more"
    at = f"; all save step {leaving['step']}" if leaving["step"] else ""
    return f"{who}, within {duration(leaving['left_ms'] / 1000)} ({leaving['reason']}){at}"


def training_parts(training: Training, per_s: float) -> list[Part]:
    """How far, how fast, until when.

    Args:
        training: of the job.
        per_s: steps per second; 0: not known.
    """
    parts = []
    step, total = training.step, training.total_steps
    if training.epoch:
        parts.append(Part(f"epoch {training.epoch}", 3))
    parts.append(Part(f"step {step}/{total}" if total else f"step {step}", 9))
    if per_s:
        parts.append(Part(f"{per_s:.1f} step/s", 6))
    if training.loss is not None:
        parts.append(Part(f"loss {_number(training.loss)}", 5))
    if per_s and total and step < total:
        parts.append(Part(f"ETA {duration((total - step) / per_s)}", 7))
    return parts


def with_bar(parts: list[Part], training: Training, *, ascii_only: bool) -> list[Part]:
    """The same behind a bar of what is done, where the end is known."""
    if not training.total_steps:
        return parts
    done = min(BAR, training.step * BAR // training.total_steps)
    full, rest = "#." if ascii_only else "━─"
    return [Part(full * done + rest * (BAR - done), 4), *parts]


def fit(parts: list[Part], width: int) -> str:
    """The parts that a line of that width has room for; the weightiest is cut where even that has none."""
    kept = list(parts)
    while len(kept) > 1 and cell_len(_joined(kept)) > width:
        # Of two that weigh the same the later one goes.
        kept.remove(min(reversed(kept), key=lambda part: part.weight))
    line = _joined(kept)
    return line if cell_len(line) <= width else set_cell_size(line, max(0, width - 1)) + "…"


def duration(seconds: float) -> str:
    """For people: `0.4 s`, `12 s`, `3:08`, `1:02:45`."""
    if seconds < 10:  # noqa: PLR2004 - tenths are of use so long
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}:{whole % _MINUTE:02}"
    return f"{whole // _HOUR}:{whole % _HOUR // _MINUTE:02}:{whole % _MINUTE:02}"


def _joined(parts: list[Part]) -> str:
    """In one line: a reason may hold the text of an exception, with ends of lines and whatever moves a cursor."""
    line = "  ".join(part.text for part in parts)
    return line if line.isprintable() else "".join(one if one.isprintable() else " " for one in line)


def _is_over(view: Mapping[str, Any]) -> bool:
    return view["state"] in (JobState.FINISHED.value, JobState.FAILED.value)


def _ranks(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nodes of the world. While the job forms nobody has a rank; then standbys and ids of the past have none."""
    workers = [node for node in view["nodes"] if node["role"] == "worker"]
    return [node for node in workers if node.get("rank") is not None] or workers


def _forming(view: Mapping[str, Any], starts: Mapping[str, Start]) -> list[str]:
    workers = _ranks(view)
    here = {node["node_id"] for node in workers if node["state"] == NodeState.LIVE.value}
    ready = sum(bool(node.get("is_ready", True)) for node in workers if node["node_id"] in here)
    if ready >= view["world_size"]:
        return []
    coming = [
        f"{name} ({start.how}) {duration(start.for_ms / 1000)}"
        for name, start in starts.items()
        if start.how and name not in here
    ]
    named = f": {', '.join(coming[:_NAMED_MAX])}" if coming else ""
    return [f"{view['world_size'] - ready} of {view['world_size']} workers{named}"]


def _why(
    view: Mapping[str, Any], node: Mapping[str, Any], starts: Mapping[str, Start], began: int
) -> str | None:
    """What is waited for of a rank, as it follows its name; None: nothing."""
    if view["state"] == JobState.RUNNING.value:
        return " (first step)" if node["step"] <= began else None
    match node["state"]:
        case NodeState.LIVE.value:
            if node.get("is_ready", True):
                return None
            return " (imports)" if node.get("warming_up") else " (stopping)"
        case NodeState.LEFT.value:
            return " (left)"
        case state:
            return _gone(node, starts, is_lost=state == NodeState.LOST.value)


def _gone(node: Mapping[str, Any], starts: Mapping[str, Start], *, is_lost: bool) -> str:
    """Of a rank whose process is not here."""
    start = starts.get(node.get("seat") or node["node_id"])
    if start is not None:
        how = start.how or "to be started"
        return f" ({how}) {duration(start.for_ms / 1000)}"
    silent_ms = node.get("silent_ms")
    silent = f"silent {duration(silent_ms / 1000)}" if silent_ms is not None else "gone"
    left_ms = node.get("rejoin_left_ms", 0) if is_lost else 0
    window = f", window {duration(left_ms / 1000)}" if left_ms else ""
    host = f" of host {node['host']}" if node.get("host") else ""
    return f"{host}: {silent}{window}"


def _named(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _NAMED_MAX} more" if len(ranks) > _NAMED_MAX else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_NAMED_MAX]))}{more}"


def _number(loss: float | str) -> str:
    return loss if isinstance(loss, str) else f"{loss:.5g}"
