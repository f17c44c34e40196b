"""Does the control plane carry a large job? Real connections of many workers that do nothing but what the protocol asks.

    python benchmarks/crowd.py [--workers 1000] [--secured off,token,tls,both] [--json]

One real scheduler process; the workers' machines are this program's coroutines, so it shares the processors with them. Rows: what,
seconds (from the first act to the last worker's answer), and at the end the scheduler's memory in MiB and its open descriptors. All of it
again for each way to be secured: with the job's token, with TLS, with both.

join      from the first dial to the plan at the last worker
healthz   the longest answer of GET /healthz meanwhile, asked by a process of its own every 50 ms
join_cpu  processor seconds of the scheduler until then, its start included
save      every worker reports a checkpoint, until the last has heard that the step is common
notice    from a closed connection until the last survivor is interrupted; MS_RECONNECT_GRACE is 0.1 s of it
again     from the return of the lost worker to the plan at the last
back      the scheduler is killed and started again: until all workers, which dial at once, are connected again
lost      workers that it lost meanwhile; dials   connections that they needed for it
quiet     share of one processor that the scheduler uses while all of them only beat, every 5 s
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import secrets
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from recovery import clock
from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId, RequestId, ResumeToken, RunId
from recovery.core.policy.backoff import next_dial_ms
from recovery.core.principals import PrincipalKind
from recovery.core.records import EventKind
from recovery.core.rules import DIAL_MS, Rules
from recovery.store.reader import read_newest_events
from recovery.tls import issue
from recovery.tls.channel import Channel
from recovery.tls.side import Side
from recovery.transport.access import Access
from recovery.transport.client import Client, ConnectError
from recovery.transport.job_token import Caller, JobToken
from recovery.worker.jitter import jitter

DIALS_AT_ONCE = 32
QUIET_S = 10.0
Show = Callable[[str, float], None]


_PROBE = """
import http.client, select, ssl, sys, time
from pathlib import Path
context = None
if sys.argv[2]:
    from recovery.tls import issue
    from recovery.tls.channel import Channel
    from recovery.tls.side import Side
    certs = Path(sys.argv[2])
    context = Channel(certs / issue.CONFIG, Side.CLIENT, (certs / issue.PASSWORD).read_bytes().strip()).context
while not select.select([sys.stdin], [], [], 0.05)[0]:
    begun = time.monotonic()
    try:
        where = ("127.0.0.1", int(sys.argv[1]))
        if context is None:
            asked = http.client.HTTPConnection(*where, timeout=30)
        else:
            asked = http.client.HTTPSConnection(*where, timeout=30, context=context)
        asked.request("GET", "/healthz")
        asked.getresponse().read()
    except ConnectionRefusedError:
        continue
    print(time.monotonic() - begun)
"""
"""Asks until its standard input is closed; one line of seconds for each answer."""


class Secured(NamedTuple):
    """How the connections of a job are secured."""

    token: JobToken | None = None
    channel: Channel | None = None
    """The dialling side's, which all workers share here."""
    certs: Path | None = None
    """Where its files are."""


class Worker:
    """Speaks as a worker does, and trains nothing."""

    def __init__(self, name: str, port: int, workers: int, secured: Secured) -> None:
        """Do not dial yet."""
        self.name, self._workers = name, workers
        self.heard: dict[type, m.FromScheduler] = {}
        self.held: list[m.HeldCheckpoint] = []
        self.dials = 0
        self._arrived = asyncio.Event()
        self._token: ResumeToken | None = None
        self._incarnation = Incarnation(0)
        self._returning: asyncio.Task[None] | None = None
        self.returns = False
        """It dials again when its connection is lost."""
        self._request = RequestId(uuid.uuid4().hex)
        self._rules = Rules(worker_count=workers, server_count=0)
        self.generation = Generation(0)
        self.client = Client(
            host="127.0.0.1",
            port=port,
            rules=self._rules,
            on_message=self._hear,
            on_lost=self._lose,
            access=Access(Caller(PrincipalKind.NODE, name, secured.token), secured.channel),
        )

    def _hear(self, message: m.FromScheduler) -> None:
        if isinstance(message, m.Rollback):
            self.generation = message.generation
        elif isinstance(message, m.Admitted):
            self._token, self._incarnation = message.token, message.incarnation
        self.heard[type(message)] = message
        self._arrived.set()

    def _lose(self, _reason: str) -> None:
        if self.returns:
            self._returning = asyncio.create_task(self._connect())

    async def hears(self, kind: type, *, generation: int = 0) -> m.FromScheduler:
        """Wait for a message of a kind that was not taken yet."""
        while kind not in self.heard or (generation and self.generation < generation):
            self._arrived.clear()
            await self._arrived.wait()
        return self.heard.pop(kind)

    async def join(self) -> None:
        """Dial until somebody answers, and say what is held."""
        await self._connect()
        await self.hears(m.Admitted)
        self.ready()

    async def _connect(self) -> None:
        for attempt in itertools.count():
            try:
                self.dials += 1
                await self.client.connect(DIAL_MS / 1000)
                break
            except ConnectError:
                # Nobody there yet, or HTTP 503: later each time, and not all at once.
                await asyncio.sleep(next_dial_ms(attempt, jitter(), self._rules) / 1000)
        self.client.send(
            m.Register(
                request_id=self._request,
                protocol=m.PROTOCOL_VERSION,
                node_id=NodeId(self.name),
                role=m.Role.WORKER,
                host="127.0.0.1",
                pid=os.getpid(),
                worker_count=self._workers,
                server_count=0,
                recovery_enabled=True,
                token=self._token,
                incarnation=self._incarnation,
                generation=self.generation,
            )
        )

    def ready(self) -> None:
        """Stopped, and what is held."""
        request = RequestId(uuid.uuid4().hex)
        self.client.send(
            m.Ready(request_id=request, generation=self.generation, step=0, held=tuple(self.held))
        )

    def save(self, step: int) -> None:
        """Report a checkpoint."""
        held = m.HeldCheckpoint(
            run=RunId(1),
            generation=self.generation,
            step=step,
            epoch=1,
            step_in_epoch=step,
            path=f"/ckpt/{self.name}/{step}",
            digest="ab" * 32,
            file_bytes=1,
        )
        self.held.append(held)
        request = RequestId(uuid.uuid4().hex)
        self.client.send(m.CheckpointReport(request_id=request, checkpoint=held))

    async def beat(self) -> None:
        """For ever."""
        sequence = 0
        while True:
            sequence += 1
            self.client.send(m.Heartbeat(sequence=sequence, generation=self.generation, step=1))
            await asyncio.sleep(5.0)


class Scheduler:
    """Its processes, one behind the other."""

    def __init__(self, place: Path, variables: dict[str, str]) -> None:
        """Start the first one."""
        self.recovery_path = place / "recovery"
        self._log = place / "scheduler.log"
        self._environment = {**os.environ, **variables, "MS_RECOVERY_PATH": str(self.recovery_path)}
        self.start()

    def start(self) -> None:
        """Start the next one."""
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "recovery", "scheduler"]
            self.process = psutil.Popen(command, env=self._environment, stdout=log, stderr=log)

    def end(self, number: int) -> None:
        """Send a signal, and wait for the end."""
        self.process.send_signal(number)
        self.process.wait()

    def count(self, kind: EventKind) -> int:
        """How many events of a kind are stored."""
        return len(read_newest_events(self.recovery_path, (kind,), 1_000_000))


class Crowd:
    """Everybody, and the scheduler."""

    def __init__(self, port: int, workers: int, scheduler: Scheduler, show: Show, secured: Secured) -> None:
        """Nobody has dialled yet."""
        self._port, self._count, self._scheduler, self._show = port, workers, scheduler, show
        self._secured = secured
        self._all = [Worker(f"worker_{number}", port, workers, secured) for number in range(workers)]
        self._dialling = asyncio.Semaphore(DIALS_AT_ONCE)

    async def measure(self) -> None:
        """All of it."""
        pipe = asyncio.subprocess.PIPE
        probe = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROBE, str(self._port), str(self._secured.certs or "")),
            stdin=pipe,
            stdout=pipe,
        )
        await self._timed("join", self._join())
        answers, _ = await probe.communicate(b"")
        self._show("healthz", max(map(float, answers.split()), default=0.0))
        self._show("join_cpu", sum(self._scheduler.process.cpu_times()[:2]))
        beats = [asyncio.create_task(worker.beat()) for worker in self._all]
        for number in (1, 2, 3):
            await self._timed(f"save {number}", self._save(number * 10))
        self._show("quiet", await self._share_of_a_processor())
        beats.pop().cancel()
        *survivors, victim = self._all
        await self._timed("notice", self._notice(victim, survivors))
        await self._timed("again", self._return(victim, survivors))
        self._show("memory_mib", self._scheduler.process.memory_info().rss / 2**20)
        self._show("descriptors", self._scheduler.process.num_fds())
        await self._restart()
        for beat in beats:
            beat.cancel()
        for worker in self._all:
            await worker.client.close()

    async def _timed(self, what: str, act: Awaitable[object]) -> None:
        begun = time.monotonic()
        await act
        self._show(what, time.monotonic() - begun)

    async def _join(self) -> None:
        await asyncio.gather(*(self._let_in(worker) for worker in self._all))
        await asyncio.gather(*(worker.hears(m.Rollback) for worker in self._all))

    async def _let_in(self, worker: Worker) -> None:
        async with self._dialling:
            await worker.join()

    async def _save(self, step: int) -> None:
        for worker in self._all:
            worker.save(step)
        await asyncio.gather(*(worker.hears(m.Committed) for worker in self._all))

    async def _share_of_a_processor(self) -> float:
        before = self._scheduler.process.cpu_times()
        await asyncio.sleep(QUIET_S)
        after = self._scheduler.process.cpu_times()
        return (after.user + after.system - before.user - before.system) / QUIET_S

    async def _notice(self, victim: Worker, survivors: list[Worker]) -> None:
        await victim.client.close()
        await asyncio.gather(*(worker.hears(m.Interrupt) for worker in survivors))

    async def _restart(self) -> None:
        resumed_before = self._scheduler.count(EventKind.NODE_RESUMED)
        lost_before = self._scheduler.count(EventKind.NODE_LOST)
        for worker in self._all:
            worker.returns, worker.dials = True, 0
            worker.heard.clear()
        self._scheduler.end(signal.SIGKILL)
        self._scheduler.start()
        await self._timed("back", asyncio.gather(*(worker.hears(m.Admitted) for worker in self._all)))
        # Whoever is lost in the end is so within its grace.
        await asyncio.sleep(1.0)
        self._show("dials", sum(worker.dials for worker in self._all))
        self._show("resumed", self._scheduler.count(EventKind.NODE_RESUMED) - resumed_before)
        self._show("lost", self._scheduler.count(EventKind.NODE_LOST) - lost_before)
        for worker in self._all:
            worker.returns = False

    async def _return(self, victim: Worker, survivors: list[Worker]) -> None:
        for worker in survivors:
            worker.ready()
        back = Worker(victim.name, self._port, self._count, self._secured)
        back.held = victim.held
        self._all[-1] = back
        await back.join()
        await asyncio.gather(*(worker.hears(m.Rollback, generation=2) for worker in self._all))


def _secured(how: str, place: Path) -> tuple[Secured, dict[str, str]]:
    """What the workers are given, and the variables that say the same to the scheduler."""
    variables = {"MS_JOB_TOKEN": "off"}
    token, channel, certs = None, None, None
    if how in {"token", "both"}:
        variables["MS_JOB_TOKEN"] = secrets.token_hex(32)
        token = JobToken(variables["MS_JOB_TOKEN"])
    if how in {"tls", "both"}:
        certs = place / "certs"
        issue.create(certs, nodes=(), hosts=("127.0.0.1",), days=30, now=clock.utc_now())
        password = certs / issue.PASSWORD
        variables |= {
            "MS_ENABLE_SSL": "1",
            "MS_CONFIG_FILE_PATH": str(certs / issue.CONFIG),
            "MS_SERVER_PASSWORD_FILE": str(password),
        }
        channel = Channel(certs / issue.CONFIG, Side.CLIENT, password.read_bytes().strip())
    return Secured(token, channel, certs), variables


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--port", type=int, default=18_497)
    parser.add_argument("--secured", default="off", help="off, token, tls, both; several with commas")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for number, how in enumerate(asked.secured.split(",")):
        _measure(asked, how, asked.port + number)


def _measure(asked: argparse.Namespace, how: str, port: int) -> None:
    def show(what: str, value: float) -> None:
        row = {"what": what, "workers": asked.workers, "secured": how, "value": round(value, 3)}
        print(json.dumps(row) if asked.json else f"{how:<8}{what:<14}{value:10.3f}", flush=True)

    with tempfile.TemporaryDirectory() as place:
        secured, variables = _secured(how, Path(place))
        variables |= {
            "MS_ENABLE_RECOVERY": "1",
            "MS_WORKER_NUM": str(asked.workers),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(port),
            "MS_REJOIN_WINDOW": "0",
            "MS_RECONNECT_GRACE": "0.1",
        }
        scheduler = Scheduler(Path(place), variables)
        try:
            asyncio.run(Crowd(port, asked.workers, scheduler, show, secured).measure())
        finally:
            scheduler.end(signal.SIGTERM)


if __name__ == "__main__":
    main()
