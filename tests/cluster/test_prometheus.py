"""A real Prometheus (Debian's package `prometheus`) takes the example's rules, and scrapes a real job over a failure."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from recovery.core.records import EventKind
from tests.cluster.harness import free_port
from tests.cluster.small_cluster import SmallCluster
from tests.house.files import ROOT
from tests.needs import needs_tool
from tests.report.test_metrics_files import of_dashboard

pytestmark = pytest.mark.cluster

FOLDER = ROOT / "examples/prometheus"
WAIT_S = 120.0


def checked(*words: str) -> subprocess.CompletedProcess[str]:
    command = [needs_tool("promtool", "prometheus"), "check", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    done = checked("rules", str(FOLDER / "alerts.yml"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"SUCCESS: \d+ rules found", done.stdout)
    done = checked("config", str(FOLDER / "prometheus.yml"))
    assert done.returncode == 0, done.stderr


def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    expressions = [one for one in of_dashboard() if not one.startswith("label_values(")]
    rules = [
        {"record": f"panel:{number}", "expr": one.replace("$__rate_interval", "5m")}
        for number, one in enumerate(expressions)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = checked("rules", str(file))
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


class Prometheus:
    """One that runs."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self._address, self._process, self._log = f"http://127.0.0.1:{port}", process, log

    def ask(self, route: str, **query: str) -> Any:
        """None: it does not answer yet."""
        try:
            with urlopen(f"{self._address}/api/v1/{route}?{urlencode(query)}", timeout=20) as answer:
                return json.load(answer)["data"]
        except OSError:
            assert self._process.poll() is None, self._log.read_text()
            return None

    def value(self, expression: str) -> float | None:
        """The newest value of an expression that has one; None: it has none."""
        found = self.ask("query", query=expression)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def wait(self, expression: str, is_so: Callable[[float], bool]) -> float:
        deadline = time.monotonic() + WAIT_S
        while True:
            value = self.value(expression)
            if value is not None and is_so(value):
                return value
            assert time.monotonic() < deadline, f"{expression} is {value}\n{self._log.read_text()}"
            time.sleep(0.1)


@contextmanager
def scraping(directory: Path, target: int) -> Iterator[Prometheus]:
    """The example's configuration with the job's port, and a scrape a second."""
    port, program = free_port(), needs_tool("prometheus")
    text = (FOLDER / "prometheus.yml").read_text()
    file, log = directory / "prometheus.yml", directory / "prometheus.log"
    file.write_text(text.replace("15s", "1s").replace("8118", str(target)))
    (directory / "alerts.yml").write_bytes((FOLDER / "alerts.yml").read_bytes())
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=said,
            stderr=said,
        )
    try:
        yield Prometheus(port, process, log)
    finally:
        process.terminate()
        process.wait(60)


def test_a_job_is_scraped_over_a_failure(tmp_path: Path) -> None:
    needs_tool("prometheus")
    place = tmp_path / "prometheus"
    place.mkdir()
    with (
        SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "40"}) as cluster,
        scraping(place, cluster.port) as prometheus,
    ):
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        prometheus.wait("recovery_committed_step", lambda step: step > 0)
        assert prometheus.value('up{job="recovery"}') == 1
        cluster.kill("worker_1")
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        prometheus.wait("recovery_generation", lambda number: number == 2)
        prometheus.wait('recovery_restarts_total{cause="node_lost"}', lambda count: count == 1)
        prometheus.wait("recovery_step", lambda step: step >= 39)
        prometheus.wait('recovery_nodes{state="live"}', lambda count: count == 2)
        prometheus.wait("recovery_goodput_ratio", lambda ratio: 0 < ratio < 1)
        alerts = prometheus.ask("rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in alerts} <= {"ok", "unknown"}, alerts
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
