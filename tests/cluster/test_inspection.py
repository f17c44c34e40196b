"""Every command on the path that a real job with failures has left."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from recovery.cli.formats import Format, show_rows
from recovery.core.records import EventKind
from recovery.errors import ROWS
from recovery.report.tables import CERTIFICATES, EVENTS, VIEWS
from tests.cluster.inspected import answer, contents, finished_job, run
from tests.cluster.small_cluster import LAST_STEP, SmallCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_job(tmp_path_factory)


@pytest.mark.cold_start(reason="the command as it is typed")
def test_status_is_one_screen(path: Path) -> None:
    found = answer("status", str(path))
    assert (found["state"], found["world_size"], found["newest_step"]) == ("finished", 2, LAST_STEP)
    assert found["scheduler"] == {"pid": None, "alive": False, "incarnation": 2}
    assert found["workers_by_state"] == {"left": 2}
    assert found["steps_since_checkpoint"] == LAST_STEP - found["committed_step"]
    assert found["last_events"][-1]["kind"] == "job_finished"
    shown = run("status", str(path)).stdout
    assert len(shown.splitlines()) < 40
    assert re.search(r"^state +finished$", shown, re.MULTILINE)
    assert "\x1b" not in shown


OF_A_JOB = [view for view in VIEWS if view is not CERTIFICATES]
"""The certificates lie elsewhere: tests/tls looks at them."""


@pytest.mark.parametrize("view", OF_A_JOB, ids=lambda view: view.name)
def test_rows_are_the_same_in_every_form(path: Path, view: object) -> None:
    name = view.name  # type: ignore[attr-defined]  # a View
    keys = [column.key for column in view.columns]  # type: ignore[attr-defined]  # a View
    rows = answer(name, str(path))
    assert rows
    assert all(list(row) == keys for row in rows)
    lines = [json.loads(line) for line in run(name, str(path), "--format=ndjson").stdout.splitlines()]
    assert lines == rows
    table = list(csv.DictReader(io.StringIO(run(name, str(path), "--format=csv").stdout)))
    assert [list(row) for row in table] == [keys] * len(rows)
    assert table[0][keys[0]] == str(rows[0][keys[0]])
    shown = run(name, str(path)).stdout.splitlines()
    assert len(shown) == len(rows) + 1
    assert "\x1b" not in "".join(shown)


def test_the_nodes_the_generations_and_the_steps_tell_what_happened(path: Path) -> None:
    assert [(row["node_id"], row["rank"], row["incarnation"]) for row in answer("nodes", str(path))] == [
        ("worker_0", 0, 1),
        ("worker_1", 1, 2),
    ]
    first, second = answer("generations", str(path))
    assert second["because"] == first["ended"]
    assert re.fullmatch(r"worker_1 lost: its process \(pid \d+\) has ended", first["ended"])
    assert {row["step"] for row in answer("steps", str(path))} == {LAST_STEP}


def test_events_by_node_time_and_number(path: Path) -> None:
    rows = answer("events", str(path), "--limit=1000")
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["node"] for row in answer("events", str(path), "--node=worker_1")} == {"worker_1"}
    assert answer("events", str(path), "--limit=1") == rows[-1:]
    middle = rows[len(rows) // 2]["time"]
    since = answer("events", str(path), f"--since={middle}", "--limit=1000")
    assert since[0]["time"] >= middle
    assert len(since) < len(rows)
    assert answer("events", str(path), "--since=1h", "--limit=1000") == rows


def test_a_wrong_time_is_refused_by_name(path: Path) -> None:
    done = run("events", str(path), "--since=soon")
    assert (done.returncode, done.stdout) == (21, "")
    assert done.stderr.startswith("SETTING_TYPE: --since='soon'")


def test_one_place_to_look_at_is_named(path: Path) -> None:
    for command in ("events", "nodes", "status"):
        done = run(command, str(path), "--connect=127.0.0.1:1")
        assert done.returncode == 64
        assert done.stderr.startswith("USAGE: PATH: and --connect=HOST:PORT are both given")


def test_a_followed_csv_stays_one(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer("events", str(path), "--limit=4")
    for first, part in ((True, rows[:2]), (False, rows[2:])):
        show_rows(EVENTS, part, Format.CSV, with_head=first)
    assert capsys.readouterr().out == run("events", str(path), "--limit=4", "--format=csv").stdout


def test_a_finished_jobs_plan_is_its_next_run(path: Path) -> None:
    found = answer("plan", str(path))
    assert (found["action"], found["step"], found["steps_lost"]) == ("new_run", 0, 0)


def test_all_is_as_it_was_written_and_nothing_was_written_by_looking(path: Path) -> None:
    before = contents(path.parent)
    done = run("verify", str(path))
    assert (done.returncode, done.stdout) == (0, "all is as it was written\n")
    for command in ("status", "nodes", "steps", "checkpoints", "generations", "events", "plan", "timeline"):
        assert run(command, str(path)).returncode == 0
    assert contents(path.parent) == before


def test_the_timeline_is_a_page_a_picture_and_a_trace(path: Path, tmp_path: Path) -> None:
    page, picture, trace = (tmp_path / f"timeline.{ending}" for ending in ("html", "png", "json"))
    timeline = answer("timeline", str(path), f"--html={page}", f"--png={picture}", f"--trace={trace}")
    assert 0 < timeline["goodput"] < 1
    assert list(timeline["lanes"]) == ["worker_0", "worker_1"]
    assert {"running", "lost", "redoing"} <= {span["doing"] for span in timeline["lanes"]["worker_1"]}
    assert len(timeline["outages"]) == 1
    [recovery] = timeline["recoveries"]
    assert recovery["lost_steps"] > 0
    assert recovery["window_ms"] >= 800, "of the window of 1.5 s, half a second is the grace"
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", ""), "it must need nothing from elsewhere"
    assert text.count("<path") >= 8
    assert picture.read_bytes().startswith(b"\x89PNG")
    names = {one["name"] for one in json.loads(trace.read_text())["traceEvents"]}
    assert {"behind generation 1", "window", "load", "away", "running", "node_lost"} <= names
    again = run("timeline", str(path), f"--html={page}")
    assert again.returncode == 65
    assert "File exists" in again.stderr


def test_everything_in_one_document_without_secrets(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    assert run("export", str(path), str(file)).returncode == 0
    document = json.loads(file.read_text())
    assert {"job", "runs", "nodes", "generations", "checkpoints", "events", "steps", "directories"} <= set(
        document
    )
    assert "token" not in file.read_text()
    assert run("export", str(path), str(file)).returncode == 65, "nothing is written over"


def followed(cluster: SmallCluster, follow: subprocess.Popen[str]) -> list[str]:
    """Try to disturb the job, wait for its end, and give the kinds of events that a follower has printed by then."""
    path = str(cluster.directory / "recovery")
    kinds: list[str] = []
    try:
        for command in (("forget", path, "worker_0"), ("reset", path)):
            refused = run(*command, "--yes")
            assert refused.returncode == ROWS["STORE_LOCKED"].exit_code
            assert refused.stderr.startswith("STORE_LOCKED")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
        assert follow.stdout is not None
        while "job_finished" not in kinds:
            kinds.append(json.loads(follow.stdout.readline())["kind"])
        follow.send_signal(signal.SIGINT)
        assert follow.wait(60) == 0
    finally:
        follow.kill()
    return kinds


# --- this machine ---------------------------------------------------------------------------------------------------------


def test_every_variable_is_listed_with_its_source_and_what_is_wrong_is_said() -> None:
    variables = {"MS_ROLE": "MS_WORKER", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"}
    wrong = run("env", "--json", environment=variables)
    assert wrong.returncode == 20
    assert wrong.stderr.startswith("SETTING_MISSING: MS_WORKER_NUM is not set")
    rows = {row["name"]: row for row in json.loads(wrong.stdout)}
    assert (rows["MS_ROLE"]["value"], rows["MS_ROLE"]["source"]) == ("MS_WORKER", "environment")
    assert rows["MS_REJOIN_WINDOW"]["source"] == "default"
    by_mpirun = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    done = run("env", "--format=csv", environment=by_mpirun)
    assert done.returncode == 0, done.stderr
    assert "MS_NODE_ID,1,mpirun," in done.stdout


def test_the_doctor_says_what_to_do(tmp_path: Path) -> None:
    variables = {
        "MS_ROLE": "MS_WORKER",
        "MS_NODE_ID": "a",
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "1024",
        "MS_ENABLE_RECOVERY": "1",
        "MS_RECOVERY_PATH": str(tmp_path),
    }
    done = run("doctor", environment=variables)
    assert done.returncode == 1
    assert "look port: 127.0.0.1:1024 does not answer" in done.stdout
    assert "ok   recovery path" in done.stdout
    found = json.loads(run("doctor", "--json", environment=variables).stdout)
    assert {check["name"]: check["ok"] for check in found}["port"] is False


# --- a living job ---------------------------------------------------------------------------------------------------------


def test_a_living_job_is_looked_at_without_disturbing_it(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "55"}) as cluster:
        cluster.start()
        cluster.wait_step(54)
        path = str(tmp_path / "recovery")
        belongs = {"MS_RECOVERY_PATH": path}
        found = answer("status", path)
        assert found["scheduler"] == {"pid": cluster.processes["sched"].pid, "alive": True, "incarnation": 1}
        assert (found["state"], found["workers_by_state"]) == ("running", {"live": 2})
        assert answer("plan", path)["action"] == "resume"
        stranger = run("status", f"--connect=127.0.0.1:{cluster.port}")
        assert stranger.returncode == 64
        assert "asks for the job's token" in stranger.stderr
        asked = answer("status", f"--connect=127.0.0.1:{cluster.port}", environment=belongs)
        assert list(asked) == list(found)
        assert (asked["state"], asked["workers_by_state"]) == ("running", {"live": 2})
        names = [
            row["node_id"]
            for row in answer("nodes", f"--connect=localhost:{cluster.port}", environment=belongs)
        ]
        assert names == ["worker_0", "worker_1"]
        there = f"--connect=localhost:{cluster.port}"
        # They come with a heartbeat, and a fast machine is ahead of it.
        cluster.wait(
            lambda: all(row["epoch"] for row in answer("steps", there, environment=belongs)),
            "epoch of each rank",
        )
        steps = answer("steps", there, environment=belongs)
        assert [(row["node_id"], row["rank"], row["epoch"]) for row in steps] == [
            ("worker_0", 0, 3),
            ("worker_1", 1, 3),
        ]
        assert list(steps[0]) == list(answer("steps", path)[0])
        here = f"--connect=127.0.0.1:{cluster.port}"
        assert [row["generation"] for row in answer("generations", here, environment=belongs)] == [1]
        assert {row["state"] for row in answer("checkpoints", here, environment=belongs)} >= {"committed"}
        live = [
            (row["kind"], row["node"], row["step"]) for row in answer("events", here, environment=belongs)
        ]
        stored = [(row["kind"], row["node"], row["step"]) for row in answer("events", path, "--limit=1000")]
        assert live == stored[: len(live)]
        assert run("events", here, "--follow").returncode == 64
        with subprocess.Popen(
            [sys.executable, "-m", "recovery", "events", path, "--follow", "--format=ndjson"],
            stdout=subprocess.PIPE,
            text=True,
        ) as follow:
            kinds = followed(cluster, follow)
        assert kinds[0] == "scheduler_started"
        assert kinds.count("checkpoint_committed") >= 10


def test_the_live_view_goes_on_until_it_is_interrupted(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "recovery", "top", str(path), "--interval=0.1"],
        stdout=subprocess.PIPE,
        text=True,
    ) as top:
        assert top.stdout is not None
        try:
            assert "job" in top.stdout.readline()
            top.send_signal(signal.SIGINT)
            assert top.wait(60) == 0
        finally:
            top.kill()


def wait_for(said: IO[str], mark: str) -> None:
    while mark not in (line := said.readline()):
        assert line, "it ended"


def test_the_live_view_of_a_scheduler_goes_on_over_its_death(tmp_path: Path) -> None:
    held = {"JOB_HELD_STEP": "20"}
    with SmallCluster(tmp_path, environment=held) as cluster:
        cluster.start()
        cluster.wait_step(6)
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "recovery",
                "top",
                f"--connect=127.0.0.1:{cluster.port}",
                "--interval=0.1",
            ],
            env={**os.environ, "MS_RECOVERY_PATH": str(tmp_path / "recovery")},
            stdout=subprocess.PIPE,
            text=True,
        ) as top:
            assert top.stdout is not None
            try:
                wait_for(top.stdout, "2 live")
                cluster.kill("sched")
                wait_for(top.stdout, "no scheduler answers")
                cluster.launch("sched")
                wait_for(top.stdout, "2 live")
                top.send_signal(signal.SIGINT)
                assert top.wait(60) == 0
            finally:
                top.kill()


# --- what a restart would do, and then does ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_the_plan_is_what_then_happens(tmp_path: Path, damaged: bool) -> None:
    with SmallCluster(tmp_path, window_s=1.0, environment={"JOB_HELD_STEP": "40"}) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=4)
        for name in ("worker_1", "sched", "worker_0"):
            cluster.kill(name)
        path = str(tmp_path / "recovery")
        found = answer("plan", path)
        if damaged:
            file = Path(found["files"][1]["path"])
            file.write_bytes(file.read_bytes()[:-1] + b"?")
            better, found = found, answer("plan", path)
            assert found["step"] < better["step"]
            assert [(one["rank"], one["path"]) for one in found["stepped_back"]] == [(1, str(file))]
        assert found["action"] == "resume"
        assert all(one["verified"] for one in found["files"])
        assert found["steps_lost"] >= 0

        cluster.start()
        cluster.go_on()
        cluster.wait_end()
        plans = [stored.event for stored in cluster.events(EventKind.PLAN_MADE)]
        assert plans[-1].step == found["step"]
        cluster.check_result()


def test_a_job_without_a_common_checkpoint_cannot_go_on(path: Path, tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "40"}) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        for name in ("worker_1", "sched", "worker_0"):
            cluster.kill(name)
        for file in (tmp_path / "ckpt/1").glob("*.ckpt"):
            file.unlink()
        done = run("plan", str(tmp_path / "recovery"))
        assert done.returncode == 1
        assert "NO_COMMON_CHECKPOINT" in done.stdout
        found = answer("plan", str(tmp_path / "recovery"), "--allow-restart-from-zero")
        assert (found["action"], found["step"]) == ("start", 0)


def test_a_node_that_is_forgotten_is_let_in_at_once_and_a_reset_path_is_a_new_job(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=600, environment={"JOB_HELD_STEP": "40"}) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        path = str(tmp_path / "recovery")
        cluster.kill("worker_1")
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        cluster.kill("sched")
        assert answer("plan", path)["refused"][0]["node_id"] == "worker_1"
        assert run("forget", path, "worker_1").returncode == 64, "without a terminal nobody has confirmed it"
        unknown = run("forget", path, "worker_9", "--yes")
        assert unknown.returncode == 64
        assert "Name one of: worker_0, worker_1." in unknown.stderr
        assert run("forget", path, "worker_1", "--yes").returncode == 0
        cluster.launch("sched")
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
        admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, "worker_1")]
        assert [(event.incarnation, event.rank) for event in admitted[1:]] == [(2, 1)]

        kept = contents(tmp_path / "recovery")
        assert run("reset", path, "--yes").returncode == 0
        [archive] = (tmp_path / "recovery").glob("reset-*")
        assert {name for name in kept if name.endswith(".db")} == {
            name for name in contents(archive) if name.endswith(".db")
        }
        assert run("status", path).returncode != 0
