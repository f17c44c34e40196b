"""Stories: what people do on the left, what the scheduler sends and logs on the right. `pytest tests/core --rewrite` renews the right.

Commands: `world N`, `train N` (w0 to wN-1 have formed and train), `start NAME [KEY]`, `stop NAME` (SIGSTOP), `ready NAME [STEPS...]`, `save STEP` (all), `kill NAME`, `at SECONDS`, `resume NAME`,
`done NAME`, `raise NAME`, `leave NAME`, `bad NAME STEP`, `restart scheduler`. Times are seconds since the world began.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.core import messages as m
from recovery.core.effects import Exit
from recovery.core.records import EventKind, EventRecord, JobRecord
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))
SHOWN = (m.Admitted, m.Refused, m.Rollback, m.JobEnded)
"""What the right side shows of what a worker hears; the rest stands in the events."""


class StagedCheckpoint:
    """Carries out one story."""

    def __init__(self) -> None:
        self.desk = Desk(Rules(worker_count=1))
        self.workers: dict[str, Worker] = {}
        self.silent: set[str] = set()

    def play(self, line: str) -> str:
        """One line's right side."""
        command, *words = line.split()
        events, heard = len(self.desk.events), {number: len(tray) for number, tray in self.desk.tray.items()}
        exit_before = self.desk.exit
        acts: dict[str, Callable[..., None]] = {
            "world": self._world,
            "start": self._start,
            "resume": self._resume,
            "ready": self._ready,
            "save": self._save,
            "train": self._train,
            "kill": self._kill,
            "stop": self.silent.add,
            "at": self._at,
            "done": lambda name: self.workers[name].done(),
            "raise": self._raise,
            "leave": self._leave,
            "bad": self._bad,
            "restart": lambda what: self.desk.restart(),
        }
        acts[command](*words)
        said = [_event(event) for event in self.desk.events[events:]]
        if command in ("world", "train"):
            return ""
        for worker in self.workers.values():
            tray = self.desk.tray[worker.connection]
            new = [
                message for message in tray[heard.get(worker.connection, 0) :] if isinstance(message, SHOWN)
            ]
            said += [f"{worker.node_id} hears {_message(message)}" for message in new]
            if any(isinstance(message, m.Rollback) for message in new):
                worker.follow()
        if self.desk.exit is not None and self.desk.exit is not exit_before:
            said.append(_exit(self.desk.exit))
        job = self.desk.row(JobRecord)[0]
        return "; ".join([*said, f"[{job.state.value} {job.generation}]"])

    def _world(self, count: str) -> None:
        self.desk = Desk(Rules(worker_count=int(count)))

    def _train(self, count: str) -> None:
        self._world(count)
        for worker in running_workers(self.desk, *(f"w{index}" for index in range(int(count)))):
            self.workers[worker.node_id] = worker

    def _at(self, seconds: str) -> None:
        """Let time pass; whoever runs says so every 3 s."""
        until = round(float(seconds) * 1000)
        while self.desk.now < until:
            self.desk.at(min(until, self.desk.now + 3_000))
            for name, worker in self.workers.items():
                if name not in self.silent:
                    worker.beat()

    def _kill(self, name: str) -> None:
        self.silent.add(name)
        self.workers[name].die()

    def _start(self, name: str, key: str = "") -> None:
        worker = self.workers[key or name] = Worker(self.desk, name)
        admitted = isinstance(worker.register(), m.Admitted)
        (self.silent.discard if admitted else self.silent.add)(key or name)

    def _resume(self, name: str) -> None:
        self.silent.discard(name)
        self.workers[name].register()

    def _ready(self, name: str, *steps: str) -> None:
        held = [checkpoint(int(step), path=f"{name}/{step}") for step in steps]
        self.workers[name].ready(*held)

    def _save(self, step: str) -> None:
        for worker in self.workers.values():
            worker.save(int(step))

    def _raise(self, name: str) -> None:
        worker = self.workers[name]
        error = "ValueError: loss is nan"
        worker.send(
            m.Failure(
                request_id=worker.request(), generation=worker.generation, step=1, error=error, traceback=""
            )
        )

    def _leave(self, name: str) -> None:
        worker = self.workers[name]
        worker.send(m.Leave(request_id=worker.request(), reason="SIGTERM"))

    def _bad(self, name: str, step: str) -> None:
        worker = self.workers[name]
        worker.send(
            m.CheckpointInvalid(
                request_id=worker.request(),
                generation=worker.generation,
                step=int(step),
                path=f"{name}/{step}",
                reason="wrong digest",
            )
        )


def _event(event: EventRecord) -> str:
    parts = [event.kind.value, event.node_id or ""]
    if event.kind is EventKind.NODE_REFUSED:
        return f"node_refused {event.node_id}"
    if event.step is not None:
        parts.append(f"at step {event.step}")
    return " ".join(part for part in [*parts, f"({event.reason})" if event.reason else ""] if part)


def _message(message: m.FromScheduler) -> str:
    if isinstance(message, m.Admitted):
        rank = "no rank yet" if message.rank is None else f"rank {message.rank}"
        return f"Admitted {rank} incarnation {message.incarnation}{' resumed' if message.resumed else ''}"
    if isinstance(message, m.Refused):
        return f"Refused {message.code} retry_after {message.retry_after_ms} ms"
    if isinstance(message, m.Rollback):
        return f"Rollback generation {message.generation} rank {message.rank} step {message.step}"
    assert isinstance(message, m.JobEnded)
    return f"JobEnded {message.outcome.value} ({message.reason})"


def _exit(exit_: Exit) -> str:
    return f"scheduler exits {exit_.code or 'with success'}"


@pytest.mark.parametrize("story", STORIES, ids=[story.stem for story in STORIES])
def test_a_story_goes_as_it_is_written(story: Path, request: pytest.FixtureRequest) -> None:
    stage, played = StagedCheckpoint(), []
    written = story.read_text(encoding="utf-8")
    for line in written.splitlines():
        left = line.split(" ->")[0].strip()
        if left and not left.startswith("#"):
            right = stage.play(left)
            played.append(f"{left:<18} -> {right}" if right else left)
        else:
            played.append(line)
    now = "\n".join(played) + "\n"

    if request.config.getoption("--rewrite", default=False):
        story.write_text(now, encoding="utf-8")
    else:
        assert now == written


def test_there_are_stories() -> None:
    assert len(STORIES) >= 6
