"""The line at the bottom of a terminal: what it says, in a line of any width."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.job_line import Pace, Part, Start, duration, fit, is_waiting, parts_of, training_of, waits_for
from recovery.launch.status_line import text_of


def node(rank: int | None, step: int = 10, **fields: Any) -> dict[str, Any]:
    """A worker as a scheduler shows it."""
    told = {"epoch": 1, "total_steps": 40, "loss": 0.25, "is_ready": False, "warming_up": False}
    place = {"node_id": f"{rank}", "seat": f"{rank}", "host": "10.0.0.2", "silent_ms": 0, "rejoin_left_ms": 0}
    return {"role": "worker", "rank": rank, "state": "live", "step": step, **told, **place, **fields}


def status(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A job as a scheduler shows it."""
    job = {"world_size": len(nodes), "generation": 2, "state": "running", "reason": "", "trains": True}
    return {"nodes": nodes, "began_at_step": 5, "waits_ms": None, **job, **fields}


def line(view: dict[str, Any], pace: Pace, now_ms: int = 1, width: int = 1_000) -> str:
    return fit(parts_of(view, pace, now_ms), width)


def test_the_line_tells_how_far_training_is_how_fast_it_goes_and_when_it_ends() -> None:
    pace = Pace()
    first = "epoch 1  step 10/40  loss 0.25  2/2 ranks  generation 2"
    assert line(status(node(0), node(1)), pace, 1_000) == first
    later = line(status(node(0, 20), node(1, 19)), pace, 3_000)
    assert later == "epoch 1  step 20/40  5.0 step/s  loss 0.25  ETA 4.0 s  2/2 ranks  generation 2"


def test_a_rank_that_may_hang_is_named_on_the_line() -> None:
    hang = {"rank": 1, "step": 10, "phase": "data", "lasting_ms": 6_000, "limit_ms": 5_000, "left_out": 0}
    named = "rank 1 may hang: in data behind step 10 for 6.0 s, its limit is 5.0 s"
    view = status(node(0), node(1), hang=hang)
    assert line(view, Pace()) == f"epoch 1  step 10/40  loss 0.25  {named}  2/2 ranks  generation 2"
    view["hang"] = {**hang, "left_out": 2}
    assert "rank 1 may hang: it has left out 2 of the collectives for 6.0 s" in line(view, Pace())


def test_what_a_scheduler_of_an_earlier_release_does_not_say_is_left_out() -> None:
    nodes = [{"role": "worker", "state": "live", "step": 3, "rank": 0}]
    view = {"nodes": nodes, "world_size": 1, "generation": 2, "state": "running", "reason": ""}
    assert line(view, Pace()) == "step 3  1/1 ranks  generation 2"
    view |= {"state": "interrupted", "reason": "1 lost"}
    assert line(view, Pace()) == "recovering  1/1 ranks  generation 2  1 lost"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (79, "━━━━━─────  epoch 1  step 20/40  5.0 step/s  loss 0.25  ETA 4.0 s  2/2 ranks"),
        (60, "━━━━━─────  step 20/40  5.0 step/s  loss 0.25  ETA 4.0 s"),
        (39, "step 20/40  5.0 step/s  ETA 4.0 s"),
        (20, "step 20/40"),
        (6, "step …"),
    ],
)
def test_a_narrow_terminal_keeps_what_weighs_most(width: int, shown: str) -> None:
    pace = Pace()
    parts_of(status(node(0), node(1)), pace, 1_000)
    view = status(node(0, 20), node(1, 20))
    text = text_of(view, parts_of(view, pace, 3_000), width=width, ascii_only=False)
    assert text.plain == shown


@pytest.mark.parametrize(
    "reason", ["节点一失败损失值不是有限数", "👩‍🚀 went", "gloo:\nConnection closed\x1b[2J by peer"]
)
@pytest.mark.parametrize("width", [200, 79, 60, 30, 3])
def test_whatever_a_reason_holds_the_line_stays_one_line_of_its_width(width: int, reason: str) -> None:
    """A terminal breaks what is wider, and what is above the last break stays behind when the line is erased."""
    view = status(node(0), state="interrupted", reason=reason, trains=False)
    for parts in (parts_of(view, Pace(), 1), [Part(reason, 9)]):
        text = text_of(view, parts, width=width, ascii_only=False)
        assert text.plain.isprintable()
        assert text.cell_len <= width


def test_a_terminal_without_unicode_gets_a_bar_of_its_characters() -> None:
    view = status(node(0, 20))
    assert text_of(view, parts_of(view, Pace(), 1), width=99, ascii_only=True).plain.startswith(
        "#####.....  epoch 1"
    )


def test_ranks_that_tell_their_steps_at_different_times_make_no_pace_of_their_own() -> None:
    pace = Pace()
    for step, now_ms in ((100, 1_000), (101, 1_001), (200, 6_000), (201, 6_001)):
        pace.note(step, now_ms)
    assert pace.note(201, 9_000) == pytest.approx(101_000 / 5_001)


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace, per_s = Pace(), 0.0
    for now_ms in range(0, 120_001, 4_000):
        per_s = pace.note(now_ms // 1_000 if now_ms < 60_000 else 60 + (now_ms - 60_000) // 100, now_ms)
    assert per_s == 10.0


def test_after_a_rollback_the_pace_waits_for_the_next_step() -> None:
    pace = Pace()
    for step, now_ms in ((10, 1_000), (20, 2_000), (5, 3_000)):
        pace.note(step, now_ms)
    assert pace.note(5, 4_000) == 10.0
    assert pace.note(8, 5_000) == 1.5


def test_the_time_of_a_recovery_slows_no_pace() -> None:
    pace = Pace()
    pace.note(10, 1_000)
    assert pace.note(20, 2_000) == 10.0
    line(status(node(0, 20), state="interrupted", trains=False), pace, 50_000)
    assert pace.note(21, 60_000) == 10.0
    assert pace.note(31, 61_000) == 10.0


LOST: dict[str, Any] = {"state": "lost", "silent_ms": 12_000, "rejoin_left_ms": 18_000}
AWAITED = {
    "on another host": (node(0, **LOST), {}, "rank 0 of host 10.0.0.2: silent 12 s, window 18 s"),
    "its window is over": (node(0, **LOST | {"rejoin_left_ms": 0}), {}, "rank 0 of host 10.0.0.2: silent 12 s"),
    "its connection closed": (node(0, state="suspect", silent_ms=300), {}, "rank 0 of host 10.0.0.2: silent 0.3 s"),
    "here, forked": (node(0, **LOST), {"0": Start("fork", 400)}, "rank 0 (fork) 0.4 s"),
    "here, not begun": (node(0, **LOST), {"0": Start("", 2_000)}, "rank 0 (to be started) 2.0 s"),
    "it imports": (node(0, warming_up=True), {}, "rank 0 (imports)"),
    "a survivor that stops": (node(0), {}, "rank 0 (stopping)"),
    "it has left": (node(0, state="left"), {}, "rank 0 (left)"),
}  # fmt: skip


@pytest.mark.parametrize("case", AWAITED)
def test_a_recovery_names_what_it_waits_for_and_for_how_long(case: str) -> None:
    awaited, starts, named = AWAITED[case]
    ready = node(1, is_ready=True)
    view = status(awaited, ready, state="interrupted", trains=False, waits_ms=2_500, reason="0 lost: silent")
    assert waits_for(view, starts) == [named]
    shown = fit(parts_of(view, Pace(), 1, starts), 1_000)
    assert shown.startswith(f"recovering 2.5 s  waiting for {named}  ")
    assert shown.endswith("  generation 2  0 lost: silent")


def test_in_forty_columns_a_recovery_says_what_it_waits_for() -> None:
    view = status(node(0, **LOST), state="interrupted", trains=False, waits_ms=2_500)
    assert (
        fit(parts_of(view, Pace(), 1, {"0": Start("spawn", 1_200)}), 39) == "waiting for rank 0 (spawn) 1.2 s"
    )


def test_many_ranks_of_one_kind_are_counted() -> None:
    view = status(*(node(rank) for rank in range(9)), state="interrupted", trains=False)
    assert waits_for(view) == ["ranks 0, 1, 2 and 6 more (stopping)"]


def test_a_generation_waits_for_the_first_steps_behind_its_plan() -> None:
    view = status(node(0, 6), node(1, 5), node(2, 5), trains=False, waits_ms=1_800)
    assert line(view, Pace()) == (
        "recovering 1.8 s  waiting for ranks 1, 2 (first step)  from step 5  3/3 ranks  generation 2"
    )
    assert line(view | {"generation": 1}, Pace()).startswith("starting 1.8 s  ")


def test_while_the_job_forms_those_on_their_way_are_named() -> None:
    here = node(None, node_id="0", is_ready=True)
    view = status(here, state="forming", trains=False, waits_ms=800, world_size=2)
    starts = {"0": Start("fork", 700), "1": Start("fork", 600)}
    assert waits_for(view, starts) == ["1 of 2 workers: 1 (fork) 0.6 s"]
    assert line(view, Pace()).startswith("starting 0.8 s  waiting for 1 of 2 workers  1/2 ranks")
    assert waits_for(view | {"world_size": 1}) == []


def test_standbys_and_ids_of_the_past_are_no_ranks() -> None:
    nodes = (node(0), node(1, state="lost"), node(None, state="live"), {**node(None), "role": "pserver"})
    assert "1/2 ranks" in line(status(*nodes, world_size=2), Pace())


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_job_that_is_over_waits_for_nothing(state: str) -> None:
    view = status(node(0, 40), state=state, trains=False)
    assert not is_waiting(view)
    assert waits_for(view) == []
    assert line(view, Pace()) == f"{state}  epoch 1  step 40/40  loss 0.25  1/1 ranks  generation 2"


def test_a_loss_that_is_no_number_is_shown() -> None:
    assert "loss nan" in line(status(node(0, loss="nan")), Pace())
    assert training_of(status(node(0, loss=None), node(1, loss=0.5))).loss == 0.5


def test_durations_are_short() -> None:
    shown = [duration(seconds) for seconds in (0.44, 9.94, 12.4, 188, 3_765)]
    assert shown == ["0.4 s", "9.9 s", "12 s", "3:08", "1:02:45"]


def test_a_script_that_tells_no_steps_trains_as_soon_as_it_runs() -> None:
    """It would wait for its first step to its end; nothing is known of a step, so none is shown as 0."""
    view = status(node(0, 0), node(1, 0), began_at_step=0, trains=False, waits_ms=90_000, generation=1)
    assert line(view, Pace()).startswith("starting 1:30  waiting for ranks 0, 1 (first step)")
    view["tells_steps"] = False
    assert line(view, Pace()) == "training, by a script that tells no steps  2/2 ranks  generation 1"
    assert line({**view, "state": "finished"}, Pace()) == "finished  2/2 ranks  generation 1"
    lost = {**view, "state": "interrupted", "nodes": [node(0, 0, state="lost"), node(1, 0)]}
    assert line(lost, Pace()).startswith("recovering 1:30  waiting for rank 0")
