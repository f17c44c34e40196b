"""What `recovery msrun` refuses before anything is started, by looking at the script and the host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from recovery.cli.main import load
from recovery.cli.start import _summary
from recovery.errors import RecoveryError, SettingError
from recovery.launch import command, host_address
from recovery.store.repository import SchedulerStore
from recovery.transport.local_address import is_local


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_job.py").write_text("import torch\nimport recovery\n")
    return tmp_path


def refused(*words: str) -> str:
    with pytest.raises(RecoveryError) as error:
        load("msrun").main(["--log_dir=logs", *words], "recovery msrun", standalone_mode=False)
    assert not Path("logs").exists(), "nothing is made before all is checked"
    return str(error.value)


def test_a_dry_run_of_a_framework_that_has_none(place: Path) -> None:
    assert refused("--sim_level=1", "torch_job.py") == (
        "SETTING_CONFLICT: --sim_level=1: torch_job.py trains on PyTorch, which has no dry run. "
        "Leave the flag out, or give a script that trains on MindSpore."
    )


def test_a_rank_table_that_is_none(place: Path) -> None:
    (place / "table.json").write_text("{}")
    line = refused("--rank_table_file=table.json", "torch_job.py")
    assert line.startswith("SETTING_CONFLICT: --rank_table_file='table.json': is no rank table")


def test_a_scheduler_at_a_name_that_nobody_knows(place: Path) -> None:
    line = refused("--master_addr=no-such-host.invalid", "torch_job.py")
    assert line.startswith("SETTING_RANGE: --master_addr='no-such-host.invalid': cannot be resolved")


def test_numactl_that_is_not_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    line = refused("--bind_numa=True", "torch_job.py")
    assert "needs the program numactl, which is not installed" in line


def test_this_hosts_own_addresses() -> None:
    assert is_local("127.0.0.1")
    assert is_local("::1") or not Path("/proc/net/if_inet6").exists()
    # RFC 5737: no host has it.
    assert not is_local("192.0.2.1")
    assert is_local("localhost")
    assert not is_local("no-such-host.invalid")
    assert host_address.resolve("localhost") in ("127.0.0.1", "::1")


@pytest.mark.parametrize("name", ["a" * 64, "a..b", "a\0b", "no-such-host.invalid"])
def test_what_is_no_name_of_a_host_is_said(name: str) -> None:
    with pytest.raises(SettingError, match=r"--master_addr=.*: cannot be resolved \(.+\)\. Give the address"):
        host_address.resolve(name)


def test_a_host_goes_by_its_ipv4_address_where_the_masters_name_has_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo

    def both(_: str, port: int, family: int = 0, **how: Any) -> list[Any]:
        found = [*resolve("::1", port, **how), *resolve("127.0.0.1", port, **how)]
        return [one for one in found if family in (0, one[0])]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    address = command._this_host("master.example").address
    assert address == "127.0.0.1", "of IPv6 it may have another tomorrow, and node ids are made of it"


def test_an_address_that_no_other_host_reaches_is_named_with_the_name_that_was_given() -> None:
    assert host_address.only_here("10.0.0.1", "10.0.0.1") == ""
    line = host_address.only_here("train-1", "127.0.1.1")
    assert line.startswith("--master_addr=train-1 is 127.0.1.1 on this host, which no other host reaches")
    assert host_address.only_here("::1", "::1").startswith("--master_addr=::1, which no other host")


@pytest.mark.parametrize(("code", "how"), [(0, "are done"), (71, "ended with 71")])
def test_a_host_without_the_schedulers_store_says_how_its_part_ended(
    place: Path, code: int, how: str
) -> None:
    on = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(place / "recovery")}
    assert _summary(code, "192.0.2.1", place / "logs", on) == [
        f"this host's workers {how}; 192.0.2.1, where the scheduler ran, sums the job up; logs: {place}/logs"
    ]
    assert _summary(code, "192.0.2.1", place / "logs", {}) == []


def test_the_schedulers_host_sends_nobody_elsewhere_where_there_is_no_store_yet(place: Path) -> None:
    """Its scheduler could not be started."""
    on = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(place / "recovery")}
    assert _summary(71, "127.0.0.1", place / "logs", on) == [
        f"the job had not begun: its scheduler has made no store in {place}/recovery; logs: {place}/logs"
    ]


def test_a_job_that_had_not_begun_is_not_told_to_start_its_scheduler(place: Path) -> None:
    """Its scheduler has made the store, and found its port taken."""
    SchedulerStore.open(place / "recovery").close()
    on = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(place / "recovery")}
    assert _summary(50, "127.0.0.1", place / "logs", on) == [f"the job had not begun; logs: {place}/logs"]


def test_a_launcher_without_a_thread_left_ends_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop ends the threads that it has used from one thread more: a traceback and 1 were the end."""

    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    async def ended() -> int:
        with contextlib.suppress(RuntimeError):
            await asyncio.to_thread(int)
        return 3

    async def not_begun() -> int:
        await asyncio.to_thread(int)
        return 3

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert command._to_its_end(ended()) == 3
    with pytest.raises(RecoveryError, match="LAUNCH_FAILED: the launcher: can't start new thread") as error:
        command._to_its_end(not_begun())
    assert error.value.exit_code == 71
