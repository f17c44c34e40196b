"""`recovery msrun`: from the command line to the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from recovery.core.records import EventKind
from recovery.errors import RecoveryError, SettingConflictError
from recovery.launch import addresses, arguments, background, output, placement, rank_table
from recovery.launch.agent import Agent
from recovery.launch.tail import Tail, follow
from recovery.store.reader import read_events


def msrun(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Do what the words say. Gives the exit code.

    Raises:
        SettingError: a flag is wrong; nothing was started.
    """
    told = arguments.parse(words)
    address = addresses.resolve(told.master_addr)
    told = msgspec.structs.replace(told, master_addr=address)
    if told.rank_table_file is not None:
        rank_table.check(told.rank_table_file, worker_num=told.worker_num)
    placed = placement.place(told, _this_host(address))
    if told.bind_numa and shutil.which("numactl") is None:
        raise SettingConflictError(
            field="--bind_numa",
            value=told.bind_numa,
            rule="needs the program numactl, which is not installed",
            next_step="Install it (Debian and Ubuntu: apt install numactl), or leave the flag out.",
        )
    log_dir = told.log_dir.resolve()
    log_dir.mkdir(parents=True, exist_ok=True)
    agent = Agent(
        placed,
        environment=environment,
        log_dir=log_dir,
        max_restarts=told.max_restarts,
        has_stepped=lambda: _has_stepped(environment),
    )
    if not told.join:
        pid = background.hand_over(log_dir, lambda: asyncio.run(agent.run()))
        output.say(f"the job runs in the background (pid {pid}); `recovery stop {log_dir}` ends it")
        return 0
    shown = [
        Tail(log_dir / f"{one.name}.log", str(one.local_index))
        for one in placed
        if one.kind is placement.Kind.WORKER
        and (told.tail_worker_log is None or one.local_index in told.tail_worker_log)
    ]
    return asyncio.run(_shown(agent, shown))


def _this_host(master_addr: str) -> placement.Host:
    nodes = Path("/sys/devices/system/node").glob("node[0-9]*")
    return placement.Host(
        name=socket.gethostname(),
        owns_master_addr=addresses.is_local(master_addr),
        interpreter=sys.executable,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        numa_nodes=tuple(sorted(int(node.name.removeprefix("node")) for node in nodes)) or (0,),
    )


async def _shown(agent: Agent, tails: list[Tail]) -> int:
    following = asyncio.create_task(follow(tails))
    try:
        return await agent.run()
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def _has_stepped(environment: Mapping[str, str]) -> bool:
    """By the stored story; a host without it cannot know and takes it for granted."""
    path = Path(environment.get("MS_RECOVERY_PATH", ""))
    if not environment.get("MS_RECOVERY_PATH") or not path.is_dir():
        return True
    try:
        events = read_events(path, limit=1_000_000)
    except RecoveryError:
        return True
    return any(stored.event.kind is EventKind.FIRST_STEP_DONE for stored in events)
