"""Several hosts on this machine that reach each other and this one: network namespaces at one bridge. Needs root."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

from tests.faults.hosts import run
from tests.needs import lacks, needs_root, needs_tool

_TRIES = 5


class Network:
    """Its hosts are numbered from 0. No name server knows them."""

    def __init__(self, hosts: int, number: int) -> None:
        self.count = hosts
        self._tag = f"net{os.getpid() % 10_000}x{number}"
        self._prefix = f"10.214.{number}"
        self.here = f"{self._prefix}.1"
        """This machine's own address in it."""

    def make(self) -> None:
        """Bring it up."""
        run("ip", "link", "add", self._tag, "type", "bridge")
        run("ip", "addr", "add", f"{self.here}/24", "dev", self._tag)
        run("ip", "link", "set", self._tag, "up")
        for host in range(self.count):
            name = self._space(host)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{name}v", "master", self._tag, "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", link, "up")

    def address(self, host: int) -> str:
        """Of a host."""
        return f"{self._prefix}.{host + 2}"

    def inside(self, host: int) -> tuple[str, ...]:
        """Starts a command there, by exec. Unlike `ip netns exec` it leaves /sys as it is."""
        return ("nsenter", f"--net=/run/netns/{self._space(host)}")

    def processes(self, host: int) -> list[int]:
        """All that run there."""
        command = ("ip", "netns", "pids", self._space(host))
        look = partial(subprocess.run, command, capture_output=True, text=True, timeout=120)
        # A process that ends while it is looked at ends the look.
        tries = (look() for _ in range(_TRIES))
        listed = next((one for one in tries if not one.returncode), None) or look(check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def kill(self, host: int) -> None:
        """Take a host away, as if its power failed: nobody says goodbye to anybody."""
        run("ip", "link", "set", f"{self._space(host)}v", "down")
        self.end(host)

    def end(self, host: int) -> None:
        """End all that runs there."""
        for pid in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def connect(self, host: int) -> None:
        """A host that was taken away is reached again."""
        run("ip", "link", "set", f"{self._space(host)}v", "up")

    def remove(self) -> None:
        """With all that runs in it."""
        for host in range(self.count):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.end(host)
            subprocess.run(("ip", "netns", "del", self._space(host)), capture_output=True, check=False)
        subprocess.run(("ip", "link", "del", self._tag), capture_output=True, check=False)

    def _space(self, host: int) -> str:
        return f"{self._tag}n{host}"


@contextlib.contextmanager
def network(hosts: int) -> Iterator[Network]:
    """One, removed at the end; skips with its reason where that is impossible."""
    needs_root()
    needs_tool("ip", "iproute2")
    needs_tool("nsenter", "util-linux")
    made = _made(hosts)
    try:
        yield made
    finally:
        made.remove()


def _made(hosts: int) -> Network:
    said = ""
    for turn in range(_TRIES):
        found = Network(hosts, (os.getpid() + 37 * turn) % 250)
        try:
            found.make()
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            found.remove()
        else:
            return found
    return lacks("network namespaces", said)
