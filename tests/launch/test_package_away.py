"""The package is replaced while a job runs: what the launcher asks at a failure it has imported before, and nothing that it asks for advice ends the job."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typing_extensions import override

from recovery.core.ids import NodeId
from recovery.core.records import EventKind, EventRecord
from recovery.launch import stored_advice
from recovery.launch.agent import Agent
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.job_spec import Rejoin, StartMethod
from recovery.launch.job_view import Members
from recovery.launch.kernel_log import KernelLog
from recovery.launch.launch_context import LaunchContext
from recovery.launch.placement import Placed, ProcessKind
from recovery.launch.scheduler_contact import Contact, SchedulerContact
from recovery.launch.start_method import ProcessStarter, TemplatePlan
from recovery.store.repository import SchedulerStore
from recovery.transport import inspection_client
from recovery.transport.access import Access
from tests.launch.forking import orphans_left_alone
from tests.store.any_records import job

_ASKS = """
import asyncio, importlib.abc, sys
from recovery.launch import stored_advice
from recovery.launch.hung_nodes import reports_of
from recovery.launch.scheduler_contact import SchedulerContact
from recovery.core.messages import Exited
from recovery.transport import inspection_client
from recovery.transport.access import Access

environment = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": sys.argv[1]}
stored_advice.load(environment)

class Away(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in sys.modules:
            print("asked for", name)
        return None

async def contacted():
    contact = SchedulerContact("127.0.0.1", 9, Access())
    await contact.tell(Exited(node_id="0", pid=1, reason="killed", gives_up=False))
    assert await contact.known_job() is None and await contact.lost_nodes() is None
    print((await contact.stop_job("SIGINT", 1.0)).obstacle)

sys.meta_path.insert(0, Away())
print(stored_advice.stored_job(environment).state.value, stored_advice.has_stepped(environment))
asyncio.run(contacted())
"""


def test_what_is_asked_at_a_failure_was_imported_before(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([job()], wall_ms=1)
    store.close()
    asks = [sys.executable, "-c", _ASKS, str(tmp_path)]
    done = subprocess.run(asks, check=True, capture_output=True, text=True, timeout=300)
    asked = [line.removeprefix("asked for ") for line in done.stdout.splitlines() if "asked for" in line]
    assert [name for name in asked if name.partition(".")[0] not in sys.stdlib_module_names] == []
    assert done.stdout.splitlines()[0] == f"{job().state.value} False"


@pytest.mark.parametrize("kind", [EventKind.FIRST_STEP_DONE, EventKind.CHECKPOINT_COMMITTED, None])
def test_a_job_has_stepped_where_a_first_step_or_a_checkpoint_of_all_ranks_is_known(
    tmp_path: Path, kind: EventKind | None
) -> None:
    """The word of the first step is lost where a scheduler was away just then."""
    store = SchedulerStore.open(tmp_path)
    store.apply([job(), *([EventRecord(kind=kind)] if kind else [])], wall_ms=1)
    store.close()
    assert stored_advice.has_stepped({"MS_RECOVERY_PATH": str(tmp_path)}) is (kind is not None)


def _is_away(*_: Any, **__: Any) -> NoReturn:
    message = "No module named 'recovery.store.reader'"
    raise ModuleNotFoundError(message)


def test_a_store_that_cannot_be_read_since_its_reader_is_away_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The launcher ended with 71, and healthy workers with it."""
    monkeypatch.setitem(sys.modules, "recovery.store.reader", None)
    environment = {"MS_RECOVERY_PATH": str(tmp_path)}
    assert stored_advice.has_stepped(environment)
    assert stored_advice.has_stepped(environment)
    assert stored_advice.stored_job(environment) is None
    said = capfd.readouterr().out
    assert said.count("whether the job has stepped is not known (ModuleNotFoundError") == 1
    assert said.count("whether the job has finished is not known (ModuleNotFoundError") == 1


def test_a_scheduler_that_cannot_be_asked_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection_client, "ask", _is_away)
    contact = SchedulerContact("127.0.0.1", 9, Access())
    assert asyncio.run(contact.known_job()) is None
    assert asyncio.run(contact.lost_nodes()) is None
    assert asyncio.run(contact.why_declined(NodeId("0"))) == ""
    assert capfd.readouterr().out.count("what the scheduler says is not known (ModuleNotFoundError") == 1


class _LooksInVain(ProcessStarter):
    """It fails at each look, and says so to the process that it has begun at the second."""

    def __init__(self, seen: Path, plan: TemplatePlan) -> None:
        super().__init__(StartMethod.AUTO, plan)
        self._seen, self._looks = seen, 0

    @override
    def look_after(self) -> None:
        self._looks += 1
        if self._looks > 1:
            self._seen.touch()
        _is_away()


def test_what_only_looks_or_saves_time_ends_no_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A template that cannot be made, and a watch that fails: the job's process is spawned, and ends by itself."""
    waits = (
        f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'seen')!r}).exists(): time.sleep(0.01)"
    )
    plan = TemplatePlan(
        interpreter=sys.executable,
        options=(),
        environment=dict(os.environ),
        cpus=(),
        prepare=_prepare_in_vain,
    )
    placed = Placed(
        name="worker_0",
        kind=ProcessKind.WORKER,
        node_id=NodeId("0"),
        rank=0,
        local_index=0,
        command=(sys.executable, "-c", waits),
        variables={},
        cpus=(),
    )
    contact = Contact()
    context = LaunchContext(
        environment={"PATH": os.defpath},
        log_dir=tmp_path,
        max_restarts=0,
        has_stepped=lambda: True,
        contact=contact,
        beginner=_LooksInVain(tmp_path / "seen", plan),
        members=Members(contact),
        rejoin=Rejoin.NEW,
        takeover=None,
        completion=None,
        kernel_log=KernelLog(),
        stop_grace_s=5.0,
    )
    with orphans_left_alone():
        assert asyncio.run(Agent([placed], context).run()) == 0
    context.kernel_log.close()
    said = capfd.readouterr().out
    assert "workers are spawned, not forked: the template cannot be made (ModuleNotFoundError" in said
    assert said.count("what processes have left behind is not known (ModuleNotFoundError") == 1


def _prepare_in_vain() -> Prepare:
    _is_away()
