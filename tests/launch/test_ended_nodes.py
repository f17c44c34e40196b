"""A launcher tells of processes of its own host that have ended, and of no others."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from recovery import process_identity
from recovery.core.ids import NodeId
from recovery.launch.hung_nodes import SilentNode, reports_of


def test_only_processes_of_this_host_that_have_ended_are_reported() -> None:
    own = process_identity.own()
    assert own is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = process_identity.of(child.pid)
        assert identity is not None
        child.kill()
    dead = SilentNode(node_id=NodeId("1"), pid=child.pid, process=identity)
    alive = SilentNode(node_id=NodeId("2"), pid=os.getpid(), process=own)
    elsewhere = msgspec.structs.replace(
        dead, node_id=NodeId("3"), process=msgspec.structs.replace(identity, boot_id="another boot")
    )

    [exited] = reports_of((alive, dead, elsewhere))

    assert (exited.node_id, exited.pid, exited.process, exited.gives_up) == ("1", child.pid, identity, False)
    assert exited.reason == f"its process (pid {child.pid}) has ended"
