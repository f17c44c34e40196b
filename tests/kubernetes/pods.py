"""The pods of a rendered job on this machine: each a network, process and mount namespace of its own, as a kubelet would make it. Needs root.

What a cluster does to a pod is done by hand: it is made again with another address and the same number, its volume is kept or not. The address of
the Service goes to whichever pod the scheduler is.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.faults.hosts import run
from tests.kubernetes.rendered import pod_of, pods_of
from tests.needs import needs_root, needs_tool
from tests.pace import HANG_S, wait_for

ROOT = Path(__file__).parents[2]
TOKEN = "a" * 64
_STATE, _SHM = "/state", "/dev/shm"
_TOKENS = re.compile(r"\$\$|\$\([^)]*\)|.", re.DOTALL)


class Pod:
    """One of them."""

    def __init__(self, cluster: Cluster, role: str, index: int, number: int) -> None:
        self.role, self.index, self.name = role, index, f"{cluster.prefix}p{number}"
        self.address = f"{cluster.network}.{number + 1}"
        self.log = cluster.folder / f"{role}-{index}.{number}.log"
        self.spec = _template(cluster.text, role, index)
        [self.container] = self.spec["containers"]
        self.environment = self._environment()
        self._hosts = Path("/etc/netns") / self.name / "hosts"
        self._join(cluster)
        self._process = self._start(cluster)

    def _environment(self) -> dict[str, str]:
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/root",
            "PYTHONPATH": str(ROOT),
        }
        outside = {"POD_INDEX": str(self.index), "MS_WORKER_IP": self.address, "MS_JOB_TOKEN": TOKEN}
        for one in self.container["env"]:
            found[one["name"]] = _replaced(one["value"], found) if "value" in one else outside[one["name"]]
        return found

    def _join(self, cluster: Cluster) -> None:
        self._hosts.parent.mkdir(parents=True)
        self._hosts.write_text(
            f"127.0.0.1 localhost\n{self.address} {os.uname().nodename}\n{cluster.service} tiny-scheduler\n"
        )
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", f"{self.name}v", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "link", "set", f"{self.name}v", "master", cluster.prefix, "up")
        if self.role == "scheduler":
            # A Service's address has no neighbour whose number is remembered.
            run("ip", "-n", self.name, "link", "set", "eth0", "address", "02:00:00:00:00:64")
            run("ip", "-n", self.name, "addr", "add", f"{cluster.service}/24", "dev", "eth0")
        run("ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for interface in ("eth0", "lo"):
            run("ip", "-n", self.name, "link", "set", interface, "up")

    def _start(self, cluster: Cluster) -> subprocess.Popen[bytes]:
        mounts = [
            f"mount --bind {shlex.quote(str(cluster.volume(self, volume)))} {place}"
            for volume, place in self._mounted()
        ]
        inits = [one["command"] for one in self.spec.get("initContainers", ())]
        # Of process 1 of a container there is one.
        *before, last = [
            shlex.join(_replaced(word, self.environment) for word in command)
            for command in (*inits, self.container["command"])
        ]
        shm = [f"mount -t tmpfs shm {_SHM}"] if self.role != "scheduler" else []
        script = " && ".join(
            (*mounts, *shm, f"cd {shlex.quote(str(cluster.image))}", *before, f"exec {last}")
        )
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        with self.log.open("wb") as log:
            return subprocess.Popen(
                ("ip", "netns", "exec", self.name, *unshare, "sh", "-c", script),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _mounted(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The volumes of a pod that are directories here, the outer one first."""
        volumes = {one["name"]: one for one in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            if mount["mountPath"] != _SHM:
                yield volumes[mount["name"]], shlex.quote(mount["mountPath"])

    def says(self, text: str) -> bool:
        """Is it in its log?"""
        return text in self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Its node is gone."""
        self._first().send_signal(signal.SIGKILL)
        self.ended()

    def terminate(self) -> int:
        """SIGTERM alone. Gives its exit code."""
        self._first().send_signal(signal.SIGTERM)
        return self.ended()

    def preempt(self, meanwhile: Callable[[], None]) -> int:
        """As a kubelet asks a pod to end: the hook, then SIGTERM. Gives its exit code.

        Args:
            meanwhile: what else happens while the hook runs.
        """
        first, hook = self._first(), self.container["lifecycle"]["preStop"]["exec"]["command"]
        enter = ("nsenter", f"--target={first.pid}", "--mount", "--net")
        with subprocess.Popen((*enter, *hook), env=self.environment) as running_hook:
            meanwhile()
            running_hook.wait(HANG_S)
        if first.is_running():
            first.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end, and take its network away. Gives its exit code."""
        code = self._process.wait(HANG_S)
        self.remove()
        return code

    def remove(self) -> None:
        """Whatever is left of it."""
        if self._process.poll() is None:
            # Whatever runs in it ends with its process 1.
            for first in psutil.Process(self._process.pid).children():
                first.kill()
            self._process.wait(HANG_S)
        for what in (("link", "del", f"{self.name}v"), ("netns", "del", self.name)):
            subprocess.run(["ip", *what], capture_output=True, check=False)
        self._hosts.unlink(missing_ok=True)
        if self._hosts.parent.exists():
            self._hosts.parent.rmdir()

    def _first(self) -> psutil.Process:
        """Its process 1, as it is called here."""
        [first] = psutil.Process(self._process.pid).children()
        return first


class Cluster:
    """The pods of one job, and its volumes."""

    def __init__(self, folder: Path, image: Path, text: str) -> None:
        self.folder, self.image = folder, image
        self.state_path = folder / "state"
        # The paths of a pod lie where this machine has none.
        self.text = text.replace(f" {_STATE}", f" {self.state_path}").replace(
            f"={_STATE}/", f"={self.state_path}/"
        )
        number = os.getpid() % 10_000
        self.prefix, self.network = f"k8s{number}", f"10.{214 + number % 40}.{number // 40 % 250}"
        self.service = f"{self.network}.250"
        self.pods: list[Pod] = []
        self.state_path.mkdir(parents=True)

    def start(self, role: str, index: int = 0) -> Pod:
        """Make a pod."""
        pod = Pod(self, role, index, len(self.pods) + 1)
        self.pods.append(pod)
        return pod

    def volume(self, pod: Pod, volume: dict[str, Any]) -> Path:
        """Where a volume of a pod lies: a claim is the same for each that names it."""
        claim: str = volume.get("persistentVolumeClaim", {}).get("claimName", f"{pod.name}-{volume['name']}")
        path = self.folder / "volumes" / claim
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        return path

    def said(self, text: str) -> bool:
        """Has any pod said it?"""
        return any(pod.says(text) for pod in self.pods)

    def wait(self, text: str) -> None:
        """Until a pod has said it."""
        wait_for(lambda: self.said(text), text, self.logs)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"{pod.log.name}:\n{pod.log.read_text(errors='replace')[-2000:]}" for pod in self.pods
        )


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """A network for its pods; nothing of them is left behind."""
    needs_root()
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        needs_tool(tool, package)
    run("ip", "link", "add", cluster.prefix, "type", "bridge")
    try:
        run("ip", "link", "set", cluster.prefix, "up")
        yield cluster
    finally:
        for pod in cluster.pods:
            pod.remove()
        run("ip", "link", "del", cluster.prefix)


def _template(text: str, role: str, index: int) -> dict[str, Any]:
    """The pod of this number, where each has a template of its own; else the one of its role."""
    alike = [
        pod for pod in pods_of(text) if pod["metadata"]["labels"] == pod_of(text, role)["metadata"]["labels"]
    ]
    spec: dict[str, Any] = alike[index if len(alike) > 1 else 0]["spec"]
    return spec


def _replaced(text: str, known: dict[str, str]) -> str:
    plain = {"$$": "$", **{f"$({name})": value for name, value in known.items()}}
    return "".join(plain.get(token, token) for token in _TOKENS.findall(text))
