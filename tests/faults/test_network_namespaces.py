"""Packets that the kernel drops between two hosts: a worker in a network namespace of its own, cut off by nft. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.faults.test_network_faults import IMPATIENT, PATIENT, pass_time
from tests.faults.tiny_cluster import TinyCluster

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(120)]

BOTH = ("input", "output")


class Host:
    """A network namespace, joined to this one by a pair of virtual cards."""

    def __init__(self, number: int) -> None:
        self.name = f"rec{os.getpid() % 10_000}"
        self.scheduler = f"10.213.{number}.1"
        self._card = f"{self.name}v"
        self._addresses = (f"{self.scheduler}/24", f"10.213.{number}.2/24")

    @property
    def prefix(self) -> tuple[str, ...]:
        """Starts a command in it, by exec."""
        return ("ip", "netns", "exec", self.name)

    def make(self) -> None:
        """Bring it up, with a table of rules that let all pass."""
        here, there = self._addresses
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self._card, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "addr", "add", here, "dev", self._card)
        run("ip", "link", "set", self._card, "up")
        for command in (
            ("addr", "add", there, "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            run("ip", "-n", self.name, *command)
        run(*self.prefix, "nft", "add", "table", "inet", "cut")
        for way in BOTH:
            rule = f"{{ type filter hook {way} priority 0 ; }}"
            run(*self.prefix, "nft", "add", "chain", "inet", "cut", way, rule)

    def cut(self, *ways: str) -> None:
        """Drop what goes these ways, as seen from it."""
        for way in ways:
            run(*self.prefix, "nft", "add", "rule", "inet", "cut", way, "drop")

    def mend(self) -> None:
        """Let all pass."""
        run(*self.prefix, "nft", "flush", "table", "inet", "cut")

    def remove(self) -> None:
        """Its cards go with it."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@pytest.fixture
def host() -> Iterator[Host]:
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"network namespaces need root, ip and nft; missing: {', '.join(missing) or 'root'}")
    made = Host(os.getpid() % 200 + 20)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode(errors='replace').strip()}")
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def cluster_across(directory: Path, host: Host, environment: dict[str, str]) -> Iterator[TinyCluster]:
    """Two workers that train, worker_1 on the other host."""
    across = {**environment, "MS_SCHED_HOST": host.scheduler}
    with TinyCluster(directory, workers=2, environment=across) as cluster:
        cluster.started_by["worker_1"] = host.prefix
        cluster.start()
        cluster.wait_step(15)
        yield cluster


def test_packets_of_one_way_lost_for_less_than_the_lease_cost_no_rollback(tmp_path: Path, host: Host) -> None:
    with cluster_across(tmp_path, host, PATIENT) as cluster:
        before = cluster.pids()
        host.cut("output")
        pass_time(2.5)
        host.mend()
        pass_time(1.0)
        assert cluster.pids() == before
        cluster.finish()
        assert not cluster.events(EventKind.NODE_LOST)
        assert cluster.generations() == {1}


def test_packets_lost_for_longer_than_the_lease_cost_one_rollback_and_no_process(
    tmp_path: Path, host: Host
) -> None:
    with cluster_across(tmp_path, host, IMPATIENT) as cluster:
        before = cluster.pids()
        host.cut(*BOTH)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1", timeout_s=15)
        host.mend()
        cluster.wait_step(20, generation=2)
        assert cluster.pids() == before
        cluster.finish()
        assert cluster.plan_count() == 2, "more than one rollback"
        assert len(cluster.events(EventKind.NODE_ADMITTED)) == 2, "a living process was admitted anew"
