"""One process of a host: its next start waits for no report, and has a node id of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from typing_extensions import override

import recovery
from recovery.core.causes import Cause
from recovery.core.ids import NodeId
from recovery.core.messages import Exited, ProcessIdentity
from recovery.launch import children, restart_policy
from recovery.launch.attempt import Outcome
from recovery.launch.child_process import ChildProcess
from recovery.launch.incidents import Incidents
from recovery.launch.job_spec import Rejoin, StartMethod
from recovery.launch.job_view import KnownJob, KnownNode, KnownScheduler, Members
from recovery.launch.kernel_log import KernelLog
from recovery.launch.launch_context import LaunchContext
from recovery.launch.placement import Placed, ProcessKind
from recovery.launch.process_supervisor import ProcessKeeper
from recovery.launch.restart_policy import Next
from recovery.launch.scheduler_contact import Contact
from recovery.launch.start_method import ProcessStarter
from tests.small_disk import read_only

PROGRAM = """
import os, signal
with open("starts", "a") as starts:
    starts.write(f"{os.environ['MS_NODE_ID']} {os.environ.get('MS_REPLACES', '-')}\\n")
if "HEARS_THE_END" in os.environ:
    from pathlib import Path
    from recovery.end_note import note_finished
    note_finished(Path(os.environ["MS_FINISHED_FILE"]))
if "EXITS_WITH" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] < os.environ["KILLED"]:
    code = int(os.environ["EXITS_WITH"])
    if "NOTES_IT" in os.environ:
        from recovery.end_note import note_exit
        note_exit(code)
    os._exit(code)
if "RAISES" in os.environ:
    raise KeyError("raised")
if os.environ["TORCHELASTIC_RESTART_COUNT"] < os.environ["KILLED"]:
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getpid(), int(os.environ["KILLED_BY"]))
"""
DEADLINE_S = 120.0


class SlowScheduler(Contact):
    """It takes a report only when the next one has come, too."""

    def __init__(self, *answers: KnownJob | None) -> None:
        self.reported: list[tuple[str, bool]] = []
        self.processes: list[ProcessIdentity | None] = []
        self.standbys: list[bool] = []
        self._answers, self._heard = list(answers), asyncio.Event()

    @override
    async def tell(self, *reports: Exited, goes_on: bool = False) -> bool:
        for exited in reports:
            self.processes.append(exited.process)
            self.standbys.append(exited.standby)
            self.reported.append((exited.node_id, exited.gives_up))
            if len(self.reported) > 1 or exited.gives_up:
                self._heard.set()
            await self._heard.wait()
        return True

    @override
    async def known_job(self) -> KnownJob | None:
        """In order; the last answer stays."""
        if not self._answers:
            return None
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def keep(
    directory: Path,
    scheduler: SlowScheduler,
    *,
    kind: ProcessKind = ProcessKind.WORKER,
    rejoin: Rejoin = Rejoin.NEW,
    killed: int = 1,
    restarts: int = 3,
    members: Members | None = None,
    comes_for: str = "",
    killed_by: signal.Signals = signal.SIGKILL,
    hears_the_end: bool = False,
    further: Mapping[str, str] = MappingProxyType({}),
    beginner: ProcessStarter | None = None,
    patience_ms: int | None = None,
) -> tuple[Outcome, list[str]]:
    """Run a process that is killed so often. Gives its outcome, and what each start found in its environment."""
    placed = Placed(
        name="worker_0",
        kind=kind,
        node_id=NodeId("0"),
        rank=0,
        local_index=0,
        command=(sys.executable, "-c", f"import os; os.chdir({str(directory)!r})\n{PROGRAM}"),
        variables={
            "MS_NODE_ID": "0",
            "KILLED": str(killed),
            "KILLED_BY": str(int(killed_by)),
            **({"MS_REPLACES": comes_for} if comes_for else {}),
            **({"HEARS_THE_END": "1"} if hears_the_end else {}),
            "PYTHONPATH": str(Path(recovery.__file__).parents[1]),
            **further,
        },
        cpus=(),
    )
    context = LaunchContext(
        environment={"MS_ENABLE_RECOVERY": "1", "PATH": os.defpath},
        log_dir=directory,
        max_restarts=restarts,
        has_stepped=lambda: True,
        contact=scheduler,
        beginner=beginner or ProcessStarter(StartMethod.SPAWN, None),
        members=members or Members(scheduler),
        rejoin=rejoin,
        takeover=None,
        completion=None,
        kernel_log=KernelLog(),
        stop_grace_s=5.0,
        start_patience_ms=patience_ms,
    )

    async def within_the_deadline() -> Outcome:
        keeper = ProcessKeeper(placed, context, Incidents(directory))
        return await asyncio.wait_for(keeper.keep(), DEADLINE_S)

    outcome = asyncio.run(within_the_deadline())
    context.kernel_log.close()
    return outcome, (directory / "starts").read_text().splitlines()


def test_the_next_start_does_not_wait_until_the_scheduler_has_heard_of_the_death(tmp_path: Path) -> None:
    scheduler = SlowScheduler()
    outcome, starts = keep(tmp_path, scheduler)

    assert outcome.next is Next.DONE
    assert starts == ["0 -", "0.2 0"]
    assert scheduler.reported == [("0", False), ("0.2", False)], (
        "each death under the id of the process that died"
    )
    assert all(scheduler.processes), "which process it was proves that it has ended"
    assert len(set(scheduler.processes)) == len(scheduler.processes)


class GoneScheduler(SlowScheduler):
    """Nobody takes a report, and nobody answers."""

    @override
    async def tell(self, *reports: Exited, goes_on: bool = False) -> bool:
        return False


@pytest.mark.parametrize("kind", [ProcessKind.WORKER, ProcessKind.STANDBY])
def test_who_is_killed_behind_the_end_of_its_job_is_not_started_again_and_leaves_no_file(
    tmp_path: Path, kind: ProcessKind
) -> None:
    """Its own note says that it had heard of the end."""
    outcome, starts = keep(tmp_path, GoneScheduler(), kind=kind, hears_the_end=True)
    assert (outcome.next, outcome.status, starts) == (Next.FAIL_LATE, -signal.SIGKILL, ["0 -"])
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("code", [22, 23, 64, 73, 78])
def test_an_exit_code_of_ours_is_believed_with_the_engines_own_word_only(tmp_path: Path, code: int) -> None:
    exits = {"EXITS_WITH": str(code)}
    outcome, starts = keep(tmp_path, GoneScheduler(), further=exits)
    assert (outcome.next, starts) == (Next.DONE, ["0 -", "0.2 0"]), "a script's own number ended the job"

    (tmp_path / "starts").unlink()
    outcome, starts = keep(tmp_path, GoneScheduler(), further={**exits, "NOTES_IT": "1"})
    assert (outcome.status, len(starts)) == (code, 1)


def test_a_start_whose_program_between_is_away_has_never_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is being replaced: its end was taken for the script's own, and twice the same ended the job."""
    monkeypatch.setattr(restart_policy, "_BACK_OFF_MS", (0,))
    away, was_there = tmp_path / "pre_exec.py", children._PRE_EXEC

    class Away(ProcessStarter):
        asked = 0

        @override
        async def begin(self, *command: Any, **how: Any) -> ChildProcess:
            self.asked += 1
            monkeypatch.setattr(children, "_PRE_EXEC", str(away) if 1 < self.asked < 5 else was_there)
            return await super().begin(*command, **how)

    outcome, starts = keep(tmp_path, GoneScheduler(), restarts=1, beginner=Away(StartMethod.SPAWN, None))
    assert (outcome.next, starts) == (Next.DONE, ["0 -", "0.2 0"])
    [incident] = tmp_path.glob("incident-2.json")
    assert json.loads(incident.read_text())["first"]["status"] == (
        "could not be started (it had ended before its program began: exit code 2)"
    )


_RAISES = {"RAISES": "1"}
_OLDER = """=== worker_0 start 1 2026-01-01T00:00:00.000+00:00 ===
Traceback (most recent call last):
  File "train.py", line 1, in <module>
ValueError: of an older run
"""


@pytest.mark.parametrize("log", ["a directory", "a full disk", "an older run's, read-only"])
def test_what_cannot_go_into_the_log_is_shown_and_is_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], log: str
) -> None:
    """It was lost, and what an older run had left in the log was given as the reason."""
    path = tmp_path / "worker_0.log"
    mounted: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if log == "a directory":
        path.mkdir()
    elif log == "a full disk":
        path.symlink_to("/dev/full")
    else:
        path.write_text(_OLDER)
        mounted = read_only(path)
    with mounted:
        outcome, starts = keep(tmp_path, GoneScheduler(), killed=2, further=_RAISES)
    assert (outcome.status, starts) == (1, ["0 -", "0.2 0"]), "it ended twice in the same way"
    said = capfd.readouterr().out
    assert said.count("[worker_0] KeyError: 'raised'") == 2
    assert "worker_0.log cannot be written" in said
    incident = json.loads((tmp_path / "incident-2.json").read_text())
    assert incident["traceback"][-1] == "KeyError: 'raised'"
    assert "older" not in said + json.dumps(incident)
    assert incident["first"]["log"] == "none: it could not be written"


class OneRankIsMissing(SlowScheduler):
    """It has let everybody in who was reported to have ended. Rank 3 of node 9 is lost, until somebody takes it."""

    def __init__(self, *, taken: bool) -> None:
        super().__init__()
        self._taken = taken
        self._pids: dict[NodeId, int] = {}

    @override
    async def tell(self, *reports: Exited, goes_on: bool = False) -> bool:
        self._pids |= {exited.node_id: exited.pid for exited in reports}
        return True

    @override
    async def known_job(self) -> KnownJob | None:
        holder = KnownNode(node_id="9", rank=None if self._taken else 3, state="lost")
        here = [
            KnownNode(node_id=node_id, pid=pid, rank=3 if self._taken else None, state="lost")
            for node_id, pid in self._pids.items()
        ]
        return KnownJob(job="j", state="interrupted", nodes=(holder, *here))


@pytest.mark.parametrize(("taken", "second"), [(False, "0.2 9"), (True, "0.2 0")])
def test_who_comes_for_a_rank_of_another_host_comes_for_it_again_until_it_has_it(
    tmp_path: Path, taken: bool, second: str
) -> None:
    _, starts = keep(tmp_path, OneRankIsMissing(taken=taken), comes_for="9")
    assert starts == ["0 9", second]


class RankWasHandedOver(SlowScheduler):
    """The process that is killed had handed its rank over. It answers at once, as when the answer is known already."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._pid = directory / "pid"

    @override
    async def known_job(self) -> KnownJob | None:
        cause = Cause.RANK_HANDED_OVER.value
        pid = int(self._pid.read_text()) if self._pid.exists() else 0
        return KnownJob(
            job="j", state="running", nodes=(KnownNode(node_id="0", pid=pid, state="left", cause=cause),)
        )


def test_a_planned_end_is_reported_under_the_id_of_the_process_that_ended(tmp_path: Path) -> None:
    """Its next start follows at once, and has another id before the report is sent."""
    scheduler = RankWasHandedOver(tmp_path)
    outcome, starts = keep(tmp_path, scheduler, killed_by=signal.SIGTERM)
    assert outcome.next is Next.DONE
    assert starts == ["0 -", "0.2 0"]
    assert scheduler.reported[0] == ("0", False)


def test_the_same_id_where_that_is_asked(tmp_path: Path) -> None:
    scheduler = SlowScheduler()
    assert keep(tmp_path, scheduler, rejoin=Rejoin.SAME)[1] == ["0 -", "0 -"]
    assert scheduler.reported == [("0", False)] * 2


def test_a_process_that_was_never_let_in_keeps_its_id(tmp_path: Path) -> None:
    scheduler = SlowScheduler(KnownJob(job="j", state="forming", nodes=()))
    assert keep(tmp_path, scheduler)[1] == ["0 -", "0 -"]


def test_the_end_of_a_process_that_the_job_waits_for_ends_the_job(tmp_path: Path) -> None:
    scheduler = SlowScheduler(*(KnownJob(job="j", state=state, nodes=()) for state in ("forming", "failed")))
    assert keep(tmp_path, scheduler, restarts=0)[0].next is Next.FAIL
    assert scheduler.reported == [("0", True)]


def test_a_process_whose_rank_a_standby_takes_after_its_end_ends_no_job(tmp_path: Path) -> None:
    """When it is given up the rank is still its own; the scheduler decides."""
    lost = KnownNode(node_id="0", rank=0, state="lost")
    taken = (KnownNode(node_id="0", state="lost"), KnownNode(node_id="standby_0", rank=0, state="live"))
    scheduler = SlowScheduler(
        *[KnownJob(job="j", state="interrupted", nodes=(lost,))] * 3,
        KnownJob(job="j", state="interrupted", nodes=taken),
    )
    assert keep(tmp_path, scheduler, restarts=0)[0].next is Next.SURPLUS
    assert scheduler.reported == [("0", True)]


@pytest.mark.parametrize("kind", [ProcessKind.WORKER, ProcessKind.STANDBY])
def test_the_scheduler_is_told_of_a_standby_that_it_was_one(tmp_path: Path, kind: ProcessKind) -> None:
    lost = (KnownNode(node_id="0", rank=0, state="lost"),)
    scheduler = SlowScheduler(
        *[KnownJob(job="j", state="interrupted", nodes=lost)] * 2,
        KnownJob(job="j", state="failed", nodes=lost),
    )
    assert keep(tmp_path, scheduler, kind=kind, restarts=0)[0].next is Next.FAIL
    assert scheduler.standbys == [kind is ProcessKind.STANDBY]


def test_a_process_whose_rank_nobody_takes_ends_the_job(tmp_path: Path) -> None:
    lost = (KnownNode(node_id="0", rank=0, state="lost"),)
    scheduler = SlowScheduler(
        *[KnownJob(job="j", state="interrupted", nodes=lost)] * 2,
        KnownJob(job="j", state="failed", nodes=lost),
    )
    assert keep(tmp_path, scheduler, restarts=0)[0].next is Next.FAIL


def test_the_end_of_a_process_that_nobody_waits_for_is_no_give_up(tmp_path: Path) -> None:
    scheduler = SlowScheduler(KnownJob(job="j", state="running", nodes=()))
    outcome, _ = keep(tmp_path, scheduler, killed=2, restarts=1)
    assert outcome.next is Next.SURPLUS
    assert not any(gives_up for _, gives_up in scheduler.reported)


def test_a_scheduler_that_is_started_again_is_told_again_that_a_process_is_given_up(tmp_path: Path) -> None:
    lost = (KnownNode(node_id="0", rank=0, state="lost"),)
    taken = (KnownNode(node_id="0", state="lost"), KnownNode(node_id="standby_0", rank=0, state="live"))

    def answer(incarnation: int, nodes: tuple[KnownNode, ...]) -> KnownJob:
        scheduler = KnownScheduler(incarnation=incarnation)
        return KnownJob(job="j", state="interrupted", nodes=nodes, scheduler=scheduler)

    # It was killed after it had heard so: nothing of that is stored.
    scheduler = SlowScheduler(
        answer(1, lost), answer(1, lost), None, None, answer(2, lost), answer(2, lost), answer(2, taken)
    )
    members = Members(scheduler)
    members.note(answer(1, lost))
    assert keep(tmp_path, scheduler, restarts=0, members=members)[0].next is Next.SURPLUS
    assert scheduler.reported == [("0", True), ("0", True)]
