"""What does a scrape of a large job take, and does it delay a heartbeat?

    python benchmarks/scrape.py [--workers 1000] [--failures 5] [--windows 6] [--seconds 10] [--json]

One real scheduler process, and workers that do nothing but what the protocol asks (crowd.py), after so many failures, of which each leaves three
events of every rank. Rows: what, median and worst in milliseconds, n.

beat     from a heartbeat to its answer, in windows in which nobody scrapes
beat+    the same in those between them, with two scrapes a second by a process of its own
first    the first scrape, which waits for the past to be read, up to 2 s
past     from the first scrape until one is answered with it
scrape   each one after it
work     processor time of the scheduler for one, the readings of the past with it: what it uses more in those windows
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import crowd
from typing_extensions import override

from recovery.core import messages as m
from recovery.core.messages import FromScheduler

BEAT_S = 5.0
_SCRAPER = """
import http.client, select, sys, time
started = time.monotonic()
while not select.select([sys.stdin], [], [], 0.5)[0]:
    begun = time.monotonic()
    asked = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    asked.request("GET", "/metrics")
    answer = asked.getresponse()
    text = answer.read()
    took = time.monotonic() - begun
    assert answer.status == 200, (answer.status, text[:200])
    print(time.monotonic() - started if b"recovery_goodput_ratio" in text else 0, took)
"""
Show = Callable[[str, list[float]], None]


@contextlib.asynccontextmanager
async def _scraping(port: int, rows: list[tuple[float, float]]) -> AsyncIterator[None]:
    pipe = asyncio.subprocess.PIPE
    scraper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SCRAPER, str(port), stdin=pipe, stdout=pipe
    )
    yield
    answers, _ = await scraper.communicate(b"")
    rows += [(float(since), float(took)) for since, took in map(bytes.split, answers.splitlines())]


class Beater(crowd.Worker):
    """A worker that measures how soon its heartbeats are answered."""

    waits_s: list[float]
    _sent_s = 0.0

    @override
    def _hear(self, message: FromScheduler) -> None:
        if isinstance(message, m.HeartbeatAck):
            self.waits_s.append(time.monotonic() - self._sent_s)
        super()._hear(message)

    async def beat_often(self, first_s: float) -> None:
        """For ever, the first one after so long: all together would wait for each other."""
        await asyncio.sleep(first_s)
        sequence, step = 0, 1
        while True:
            sequence, step = sequence + 1, step + 1
            self._sent_s = time.monotonic()
            self.client.send(m.Heartbeat(sequence=sequence, generation=self.generation, step=step))
            await asyncio.sleep(BEAT_S)


class Scraped(crowd.Crowd):
    """Everybody, and who looks at them."""

    async def measure_scrapes(
        self, port: int, *, failures: int, windows: int, seconds: float, show: Show
    ) -> None:
        """All of it."""
        waits_s: list[float] = []
        self._all = [Beater(worker.name, port, self._count, self._secured) for worker in self._all]
        await self._join()
        for number in range(failures):
            await self._fail(number)
        beaters = [worker for worker in self._all if isinstance(worker, Beater)]
        for worker in beaters:
            worker.waits_s = waits_s
            worker.client.send(m.FirstStep(generation=worker.generation, step=1))
        apart_s = BEAT_S / len(beaters)
        beats = [asyncio.create_task(one.beat_often(index * apart_s)) for index, one in enumerate(beaters)]
        rows: list[tuple[float, float]] = []
        quiet, scraped = list[float](), list[float]()
        shares = list[float]()
        for _ in range(windows):
            begun_s = self._processor_s()
            quiet += await self._window(waits_s, seconds)
            between_s = self._processor_s()
            async with _scraping(port, rows):
                scraped += await self._window(waits_s, seconds)
            shares.append(self._processor_s() - between_s - (between_s - begun_s))
        first, *others = [took for _, took in rows]
        show("beat", quiet)
        show("beat+", scraped)
        show("first", [first])
        show("past", [next(since for since, _ in rows if since)])
        show("scrape", others)
        show("work", [sum(shares) / len(rows)])
        for beat in beats:
            beat.cancel()
        for one in beaters:
            await one.client.close()

    def _processor_s(self) -> float:
        used = self._scheduler.process.cpu_times()
        return float(used.user + used.system)

    async def _window(self, waits_s: list[float], seconds: float) -> list[float]:
        """What heartbeats have waited for their answers, in so many seconds."""
        waits_s.clear()
        await asyncio.sleep(seconds)
        return list(waits_s)

    async def _fail(self, number: int) -> None:
        """One worker is lost and comes back, and all of them do their first step."""
        *survivors, victim = self._all
        for worker in self._all:
            worker.client.send(m.FirstStep(generation=worker.generation, step=number + 1))
        await self._notice(victim, survivors)
        for worker in survivors:
            worker.ready()
        back = Beater(victim.name, self._port, self._count, self._secured)
        self._all[-1] = back
        await back.join()
        await asyncio.gather(*(one.hears(m.Rollback, generation=number + 2) for one in self._all))


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--failures", type=int, default=5)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--port", type=int, default=18_597)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()

    def show(what: str, seconds: list[float]) -> None:
        row = {
            "what": what,
            "median_ms": round(1_000 * statistics.median(seconds), 1),
            "worst_ms": round(1_000 * max(seconds), 1),
            "n": len(seconds),
        }
        print(
            json.dumps(row) if asked.json else "  ".join(f"{value!s:<10}" for value in row.values()),
            flush=True,
        )

    with tempfile.TemporaryDirectory() as place:
        variables = {
            "MS_ENABLE_RECOVERY": "1",
            "MS_WORKER_NUM": str(asked.workers),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(asked.port),
            "MS_REJOIN_WINDOW": "0",
            "MS_RECONNECT_GRACE": "0.1",
            "MS_JOB_TOKEN": "off",
        }
        scheduler = crowd.Scheduler(Path(place), variables)
        try:
            everybody = Scraped(asked.port, asked.workers, scheduler, lambda *_: None, crowd.Secured())
            asyncio.run(
                everybody.measure_scrapes(
                    asked.port,
                    failures=asked.failures,
                    windows=asked.windows,
                    seconds=asked.seconds,
                    show=show,
                )
            )
        finally:
            scheduler.end(signal.SIGTERM)


if __name__ == "__main__":
    main()
