"""A second host on this machine: a network namespace of its own. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.needs import lacks, needs_root, needs_tool

BOTH = ("input", "output")
_TRIES = 5
_PACKAGES = {"ip": "iproute2", "nft": "nftables"}


class Host:
    """A network namespace, joined to this one by a pair of virtual network interfaces."""

    def __init__(self, number: int) -> None:
        self.name = f"rec{os.getpid() % 10_000}x{number}"
        self.scheduler, self.address = f"10.213.{number}.1", f"10.213.{number}.2"
        self._interface = f"{self.name}v"
        self._addresses = (f"{self.scheduler}/24", f"{self.address}/24")

    @property
    def prefix(self) -> tuple[str, ...]:
        """Starts a command in it, by exec."""
        return ("ip", "netns", "exec", self.name)

    def make(self, *, to_cut: bool = True) -> None:
        """Bring it up; where it may be cut off, with a table of rules that let all pass."""
        here, there = self._addresses
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self._interface, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "addr", "add", here, "dev", self._interface)
        run("ip", "link", "set", self._interface, "up")
        for command in (
            ("addr", "add", there, "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            # To a scheduler at another host's interface.
            ("route", "add", "default", "via", self.scheduler),
        ):
            run("ip", "-n", self.name, *command)
        if not to_cut:
            return
        run(*self.prefix, "nft", "add", "table", "inet", "cut")
        for way in BOTH:
            rule = f"{{ type filter hook {way} priority 0 ; }}"
            run(*self.prefix, "nft", "add", "chain", "inet", "cut", way, rule)

    def is_taken(self) -> bool:
        """Has an interface here an address of its network?"""
        network = self._addresses[0]
        shown = subprocess.run(
            ("ip", "-o", "addr", "show", "to", network), check=True, capture_output=True, timeout=120
        )
        return bool(shown.stdout)

    def cut(self, *ways: str) -> None:
        """Drop what goes these ways, as seen from it."""
        for way in ways:
            run(*self.prefix, "nft", "add", "rule", "inet", "cut", way, "drop")

    def reconnect(self) -> None:
        """Let all pass."""
        run(*self.prefix, "nft", "flush", "table", "inet", "cut")

    def remove(self) -> None:
        """Its interfaces go with it."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


def run(*command: str) -> None:
    """A command that must succeed."""
    subprocess.run(command, check=True, capture_output=True, timeout=120)


@contextlib.contextmanager
def made(count: int, *, to_cut: bool = True) -> Iterator[tuple[Host, ...]]:
    """So many hosts, removed at the end; skips with its reason where that is impossible."""
    tools = ("ip", "nft") if to_cut else ("ip",)
    needs_root()
    for tool in tools:
        needs_tool(tool, _PACKAGES[tool])
    hosts = _made(count, to_cut=to_cut)
    try:
        yield hosts
    finally:
        for host in hosts:
            host.remove()


def _made(count: int, *, to_cut: bool) -> tuple[Host, ...]:
    """Make hosts under numbers that nobody else on this machine has; skips where none can be made."""
    said = ""
    for turn in range(_TRIES):
        first = (os.getpid() + 37 * turn) % 100 * 2 + 20
        hosts = tuple(Host(first + number) for number in range(count))
        try:
            # Two interfaces may have one network: what goes to the second is lost then.
            with FileLock(Path(tempfile.gettempdir()) / "tests_of_hosts.lock"):
                taken = [host for host in hosts if host.is_taken()]
                for host in () if taken else hosts:
                    host.make(to_cut=to_cut)
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            for host in hosts:
                host.remove()
        else:
            if not taken:
                return hosts
            said = f"{taken[0].scheduler} is another test's"
    return lacks("network namespaces", said)


@pytest.fixture
def host() -> Iterator[Host]:
    """One more host."""
    with made(1) as (host,):
        yield host


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    """Two more hosts."""
    with made(2) as hosts:
        yield hosts


@pytest.fixture
def joined_hosts() -> Iterator[tuple[Host, ...]]:
    """Two more hosts that nothing cuts off."""
    with made(2, to_cut=False) as hosts:
        yield hosts
