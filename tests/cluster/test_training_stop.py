"""`session.stop()`: training ends early, at one step of all ranks, which is saved, and stays ended whatever dies behind it. Real processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from recovery.report.stored import read_stored
from tests.cluster import checker
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT
from tests.cluster.small_job import value_after
from tests.cluster.test_drain import steps_lost
from tests.cluster.test_launcher import WITHOUT_RECOVERY

pytestmark = pytest.mark.cluster

STOP = 12
AGREED = STOP + 2
"""Where training ends if one rank stops at step 12 and the other is in step 13: what is named then is two steps ahead of what that one has done."""
EVERY = 4
WHY = "the loss is low enough"

_SCRIPT = f"""
import hashlib, json, os, signal, time
from pathlib import Path

import recovery
from tests.cluster.small_job import BATCHES, Tally

HERE = Path(__file__).absolute().parent
RANK_OF = os.environ.get("JOB_STOPPERS", "0 1").split()
SAVE_STEPS = int(os.environ.get("JOB_SAVE_STEPS", "5"))
HOW = os.environ.get("JOB_HOW", "session.stop({WHY!r})")
WHERE = os.environ.get("JOB_WHERE", "loop")
AHEAD = int(os.environ.get("JOB_AHEAD", "-1"))


def note(name, **said):
    with (HERE / name).open("a") as file:
        file.write(json.dumps(said) + chr(10))


def wait_for(name):
    while not (HERE / name).exists():
        recovery.current_session().check()
        time.sleep(0.01)


def train(session):
    def evaluate(session):
        note("hooks.jsonl", rank=session.rank, generation=session.generation, step=session.step)
        if WHERE == "hook" and session.step == {STOP} and str(session.rank) in RANK_OF:
            session.stop({WHY!r})

    if os.environ.get("JOB_HELD_SAVE"):
        Tally.write = held(Tally.write)
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("small", HERE / f"ckpt/{{session.rank}}", config)
    state = Tally()
    callbacks = [saver, recovery.EverySteps({EVERY}, evaluate)]
    for step, batch in session.steps(state, epochs=3, callbacks=callbacks):
        if str(step) == os.environ.get("JOB_HELD_STEP"):
            wait_for("go_on")
        if AHEAD >= 0 and step == {STOP} and session.rank != AHEAD:
            wait_for("ahead")
        if step == {STOP} + 1 and session.rank == AHEAD:
            (HERE / "ahead").touch()
            wait_for("go_on")
        epoch = (step - 1) // BATCHES + 1
        state.value = hashlib.sha256(f"{{state.value}} {{session.rank}} {{step}} {{epoch}} {{batch}}".encode()).hexdigest()
        time.sleep(0.02)
        if WHERE == "loop" and step == {STOP} + (session.rank == AHEAD) and str(session.rank) in RANK_OF and decides(session):
            if HOW == "break":
                break
            exec(HOW)
            if "then break" in HOW:
                break
    note("behind.jsonl", rank=session.rank, generation=session.generation, step=session.step, stopped=session.stopped)
    if os.environ.get("JOB_HELD"):
        wait_for("go_on")
    (HERE / f"result_{{session.rank}}").write_text(state.value)


def held(write):
    def wait(state, stream):
        (HERE / f"saving_{{os.environ['RANK']}}").touch()
        while not (HERE / "save_on").exists():
            time.sleep(0.01)
        write(state, stream)
    return wait


def decides(session):
    "Once: as a clock, or a person, that does not say the same again."
    path = HERE / f"decided_{{session.rank}}"
    once = os.environ.get("JOB_ONCE") and path.exists()
    path.touch()
    return not once


if os.environ.get("JOB_FACE") == "init":
    train(recovery.init())
else:
    recovery.run(train)()
"""


class Stopped(LaunchedCluster):
    """A job whose script ends training at step 12 of 60."""

    def start_script(self, *flags: str) -> None:
        (self.directory / SCRIPT).write_text(_SCRIPT)
        self.start(*flags)

    def steps(self) -> set[int]:
        """The last step of each rank."""
        lines = checker.lines(self.directory / "steps.jsonl")
        newest = {
            rank: max(one["step"] for one in lines if one["rank"] == rank) for rank in range(self.workers)
        }
        return set(newest.values())

    def end(self) -> int:
        """The job ends well, every rank at one step, which was saved; gives it."""
        assert self.wait_exit(LAUNCHER) == 0, self.tails()
        [step] = self.steps()
        for rank in range(self.workers):
            assert (self.directory / f"result_{rank}").read_text() == value_after(
                rank, "", range(1, step + 1)
            )
        [finished] = self.events(EventKind.JOB_FINISHED)
        assert finished.event.reason == (
            f"all {self.workers} ranks are done at step {step}: its script ended it there ({self.asker()}: {WHY})"
        )
        # Where all are found to hold it when a plan is made, that is its commit.
        held = [*self.events(EventKind.CHECKPOINT_COMMITTED), *self.events(EventKind.PLAN_MADE)]
        assert max(one.event.step or 0 for one in held) == step
        return step

    def is_asked_for(self) -> bool:
        """Has the scheduler written that training is to end?"""
        return read_stored(self.directory / "recovery").training_end is not None

    def asker(self) -> str:
        """Whose request came first."""
        [event] = self.events(EventKind.JOB_FINISHED)
        found = re.search(rf"\((\d): {WHY}\)", event.event.reason)
        assert found, event.event.reason
        return found[1]

    def noted(self, name: str) -> list[dict[str, int]]:
        path = self.directory / f"{name}.jsonl"
        return checker.lines(path) if path.exists() else []


@pytest.mark.parametrize("where", ["loop", "hook"])
@pytest.mark.parametrize("face", ["run", "init"])
def test_a_stop_on_all_ranks_ends_training_with_that_step(tmp_path: Path, face: str, where: str) -> None:
    with Stopped(tmp_path, environment={"JOB_FACE": face, "JOB_WHERE": where}) as cluster:
        cluster.start_script()
        assert cluster.end() == STOP
        assert cluster.generations() == {1}
        [stopped] = cluster.events(EventKind.TRAINING_STOPPED)
        assert (stopped.event.step, stopped.event.reason.partition(": ")[2]) == (STOP, WHY)
        assert not cluster.events(EventKind.DRAIN_BEGUN)
        assert [one["stopped"] for one in cluster.noted("behind")] == [True, True]
        said = cluster.log(LAUNCHER).splitlines()[-2]
        assert (
            f"finished at step {STOP}, where its script stopped it ({cluster.asker()}: {WHY}), after" in said
        )


@pytest.mark.parametrize(("stopper", "ahead"), [("0", "1"), ("1", "0")])
def test_a_stop_on_one_rank_ends_training_of_all_at_one_step(
    tmp_path: Path, stopper: str, ahead: str
) -> None:
    """The other is a step ahead of it."""
    with Stopped(tmp_path, environment={"JOB_STOPPERS": stopper, "JOB_AHEAD": ahead}) as cluster:
        cluster.start_script()
        cluster.wait_event(EventKind.TRAINING_STOPPED)
        (tmp_path / "go_on").touch()
        assert cluster.end() == AGREED


def test_where_each_rank_stops_at_a_step_of_its_own_training_ends_at_one_step(tmp_path: Path) -> None:
    """The second asks at a step before the one that was agreed on for the first."""
    with Stopped(tmp_path, environment={"JOB_AHEAD": "1"}) as cluster:
        cluster.start_script()
        cluster.wait((tmp_path / "ahead").exists, "rank 1 a step ahead")
        cluster.wait(cluster.is_asked_for, "the wish of rank 0")
        (tmp_path / "go_on").touch()
        assert cluster.end() == AGREED


@pytest.mark.parametrize("once", ["", "1"], ids=["decides again", "decides once"])
@pytest.mark.parametrize("node", ["0", "1", "sched", "all"])
def test_a_death_behind_the_stop_trains_no_further_step(tmp_path: Path, node: str, once: str) -> None:
    """In the evaluation: a script that would not decide so again has not to."""
    with Stopped(tmp_path, environment={"JOB_HELD": "1", "JOB_ONCE": once}) as cluster:
        cluster.start_script()
        cluster.wait(lambda: len(cluster.noted("behind")) == 2, "both in their evaluation")
        if node == "all":
            # As in a power cut: the launcher too, and the same command again.
            for pid in (*cluster.living(), cluster.processes[LAUNCHER].pid):
                os.kill(pid, signal.SIGKILL)
            cluster.wait_exit(LAUNCHER)
            cluster.start()
        else:
            cluster.kill_node(node)
        if node != "sched":
            cluster.wait(lambda: len(cluster.noted("behind")) >= 4, "both in their evaluation again")
        else:
            cluster.wait_event(EventKind.SCHEDULER_RESTARTED)
        (tmp_path / "go_on").touch()
        assert cluster.end() == STOP
        assert steps_lost(cluster) == 0
        assert {one["step"] for one in cluster.noted("behind")} == {STOP}
        assert all(one["stopped"] for one in cluster.noted("behind"))


@pytest.mark.parametrize("stoppers", ["0 1", "1"])
@pytest.mark.parametrize("node", ["0", "1", "all"])
def test_a_death_in_the_last_save_trains_to_the_same_step_and_no_further(
    tmp_path: Path, node: str, stoppers: str
) -> None:
    """Nothing was saved: the steps are done again, by a script that does not say again that it stops."""
    environment = {"JOB_SAVE_STEPS": "1000", "JOB_ONCE": "1", "JOB_STOPPERS": stoppers, "JOB_HELD_SAVE": "1"}
    with Stopped(tmp_path, environment=environment) as cluster:
        cluster.start_script()
        cluster.wait_event(EventKind.TRAINING_STOPPED)
        [stopped] = cluster.events(EventKind.TRAINING_STOPPED)
        cluster.wait((tmp_path / "saving_1").exists, "the last save")
        if node == "all":
            for pid in (*cluster.living(), cluster.processes[LAUNCHER].pid):
                os.kill(pid, signal.SIGKILL)
            cluster.wait_exit(LAUNCHER)
            cluster.start()
        else:
            cluster.kill_node(node)
        (tmp_path / "save_on").touch()
        assert cluster.end() == stopped.event.step
        plans = [one.event for one in cluster.events(EventKind.PLAN_MADE)]
        assert f"training ends at step {stopped.event.step} (" in plans[-1].reason


@pytest.mark.parametrize("node", ["0", "1"])
def test_a_death_before_the_stop_changes_nothing_of_it(tmp_path: Path, node: str) -> None:
    with Stopped(tmp_path, environment={"JOB_HELD_STEP": "8"}) as cluster:
        cluster.start_script()
        cluster.wait_step(7)
        cluster.kill_node(node)
        cluster.go_on()
        assert cluster.end() == STOP
        assert len(cluster.generations()) == 2


def test_without_recovery_and_without_a_save_a_stop_ends_training_too(tmp_path: Path) -> None:
    with Stopped(tmp_path, environment=WITHOUT_RECOVERY) as cluster:
        cluster.start_script()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert {one["step"] for one in cluster.noted("behind")} == {STOP}


def test_a_job_whose_training_was_stopped_has_finished_and_its_next_run_begins_anew(tmp_path: Path) -> None:
    with Stopped(tmp_path) as cluster:
        cluster.start_script()
        cluster.end()
        cluster.start("--continue=False")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [one.event.run for one in cluster.events(EventKind.TRAINING_STOPPED)] == [1, 2]


@pytest.mark.parametrize("reason", ["None", "0.25", "'two\\nlines'"])
def test_whatever_a_script_gives_as_its_reason_ends_training_and_is_told_in_a_line(
    tmp_path: Path, reason: str
) -> None:
    with Stopped(tmp_path, environment={"JOB_HOW": f"session.stop({reason})"}) as cluster:
        cluster.start_script()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert cluster.steps() == {STOP}
        shown = {"None": "session.stop()", "0.25": "0.25"}.get(reason, "two lines")
        assert re.search(
            rf"where its script stopped it \(\d: {re.escape(shown)}\), after", cluster.log(LAUNCHER)
        )


@pytest.mark.parametrize("stoppers", ["", "0 1"], ids=["its last epoch", "a stop"])
def test_ctrl_c_in_the_evaluation_behind_the_loop_waits_for_no_step(tmp_path: Path, stoppers: str) -> None:
    """No rank comes to one any more: what is to be saved is."""
    with Stopped(tmp_path, environment={"JOB_HELD": "1", "JOB_STOPPERS": stoppers}) as cluster:
        cluster.start_script()
        cluster.wait(lambda: len(cluster.noted("behind")) == 2, "both in their evaluation")
        cluster.processes[LAUNCHER].send_signal(signal.SIGINT)
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT, cluster.tails()
        step = STOP if stoppers else 60
        assert f"saved at step {step}: the same command goes on there" in cluster.log(LAUNCHER)
        (tmp_path / "go_on").touch()
        cluster.start()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert cluster.steps() == {step}
        assert steps_lost(cluster) == 0


# --- a break --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["run", "init"])
def test_a_break_behind_a_stop_is_refused_by_name(tmp_path: Path, face: str) -> None:
    environment = {"JOB_HOW": f"session.stop({WHY!r}) # then break", "JOB_FACE": face}
    with Stopped(tmp_path, environment=environment) as cluster:
        cluster.start_script("--max_restarts=0")
        assert cluster.wait_exit(LAUNCHER) == ROWS["USAGE"].exit_code, cluster.tails()
        said = " ".join(cluster.log_of("worker_0").split())
        assert "session.stop(): was called, and the loop was left by a break or a return" in said


def test_a_break_alone_is_allowed_and_said_to_cost_its_step(tmp_path: Path) -> None:
    with Stopped(tmp_path, environment={"JOB_HOW": "break"}) as cluster:
        cluster.start_script()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert {one["step"] for one in cluster.noted("behind")} == {STOP - 1}
        said = " ".join(cluster.log_of("worker_0").split())
        assert f"event=loop_left_early step={STOP - 1}" in said
        assert "call session.stop() instead" in said


# --- a function at steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["0", "1"])
def test_a_function_at_steps_is_run_again_only_where_a_rollback_goes_back_before_them(
    tmp_path: Path, node: str
) -> None:
    environment = {"JOB_SAVE_STEPS": "5", "JOB_STOPPERS": "", "JOB_HELD_STEP": "30"}
    with Stopped(tmp_path, environment=environment) as cluster:
        cluster.start_script()
        cluster.wait_step(17)
        cluster.kill_node(node)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        begins = {
            int(e.event.generation or 0): int(e.event.step or 0) for e in cluster.events(EventKind.PLAN_MADE)
        }
        assert len(begins) == 2
        by_rank = {rank: [one for one in cluster.noted("hooks") if one["rank"] == rank] for rank in (0, 1)}
        for called in by_rank.values():
            for generation, began in begins.items():
                found = [one["step"] for one in called if one["generation"] == generation]
                assert found == list(
                    range((began // EVERY + 1) * EVERY, (found[-1] if found else 0) + 1, EVERY)
                )
            assert max(one["step"] for one in called) == 60
