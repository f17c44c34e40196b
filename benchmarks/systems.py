"""The systems that the comparison starts, each as its users start it, and why one of them cannot be had here."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import Processes, free_port

HERE = Path(__file__).resolve().parent
SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# One kill may cost torchrun several restarts; that alone shall not end the measurement.
RESTARTS_MAX = 100
LOG = "steps.jsonl"


def nothing(processes: Processes, workers: int, rank: int) -> None:
    """The launcher starts the dead again by itself."""


@dataclass(frozen=True)
class System:
    """One way to run the same training through failures."""

    name: str
    start: Callable[[Processes, int], None]
    """Starts the job of so many workers."""
    leader: str
    """The process without which nothing can come back."""
    relaunch: Callable[[Processes, int, int], None] = nothing
    """Starts the program of a rank again, where nobody else does."""
    environment: tuple[tuple[str, str], ...] = ()
    missing: str = ""
    """Why it is not measured."""
    standbys: int = 0
    has_events: bool = False
    """Its parts stand in the events of a recovery path."""


@functools.cache
def known_flags() -> str:
    """What `recovery msrun --help` says."""
    command = [sys.executable, "-m", "recovery", "msrun", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def known(*flags: str) -> list[str]:
    """Those of the flags that the launcher knows."""
    return [flag for flag in flags if flag.partition("=")[0] in known_flags()]


def launcher(
    name: str,
    *needed: str,
    standbys: int = 0,
    program: Sequence[str] = ("program_engine.py",),
    live: bool = False,
) -> System:
    """`recovery msrun`, as far as it knows the flags.

    Args:
        name: of the row.
        needed: flags without which this is another system.
        standbys: processes that wait for a rank.
        program: what its workers run: a file of this directory, and its arguments.
        live: training goes on from a survivor's memory.
    """
    unknown = set(needed) - set(known(*needed))
    waits_for_nobody = bool(known("--rejoin"))

    def start(processes: Processes, workers: int) -> None:
        flags = [f"--worker_num={workers}", f"--master_port={free_port()}", f"--max_restarts={RESTARTS_MAX}"]
        words = [str(HERE / program[0]), *program[1:]]
        processes.start(
            "msrun", ["-m", "recovery", "msrun", *flags, *needed, "--join=True", "--log_dir=logs", *words]
        )

    return System(
        name=name,
        start=start,
        leader="msrun",
        environment=(
            ("MS_ENABLE_RECOVERY", "1"),
            ("MS_RECOVERY_PATH", "recovery"),
            *((("MS_ROLLBACK", "live"),) if live else ()),
            # A launcher that gives a lost rank to another id needs no window of 0.
            *(() if waits_for_nobody else (("MS_REJOIN_WINDOW", "0"),)),
        ),
        missing=f"recovery msrun does not know {', '.join(sorted(unknown))}" if unknown else "",
        standbys=standbys,
        has_events=True,
    )


def torchrun(*program: str, of: str = "") -> System:
    """`torchrun --max-restarts` with the switch without which its restarted workers read addresses of dead ones.

    Args:
        program: as of `launcher`; none: that of the comparison.
        of: which, in the row's name.
    """
    name, *words = program or ("program_torchrun.py",)

    def start(processes: Processes, workers: int) -> None:
        # --standalone: with a fixed --master-port the switch has no effect and restarts fail either way.
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        processes.start("torchrun", [*command, f"--max-restarts={RESTARTS_MAX}", str(HERE / name), *words])

    return System(f"torchrun{of}, {SWITCH}=1", start, leader="torchrun", environment=((SWITCH, "1"),))


def torchft(
    python: str, name: str = "torchft", *, heartbeat_ms: int = 5_000, group_timeout: float = 5
) -> System:
    """torchft's lighthouse and one replica group a rank; a dead program is started again at once, without a launcher that looks first.

    A death is noticed when both have passed: the lighthouse's heartbeat timeout and the timeout of the group's collectives.

    Args:
        python: an interpreter that has torchft; "" is this one.
        name: the row's name.
        heartbeat_ms: the lighthouse's heartbeat timeout in ms; 5,000 is its default.
        group_timeout: the timeout of the group's collectives in seconds.
    """
    lighthouse = Path(python or sys.executable).with_name("torchft_lighthouse")
    missing = ""
    if not lighthouse.is_file() or (not python and importlib.util.find_spec("torchft") is None):
        missing = "this interpreter has no torchft: pip install torchft, or name one that has it with --torchft-python"

    def begin(processes: Processes, workers: int, rank: int) -> None:
        processes.start(
            f"rank_{rank}",
            [str(HERE / "program_torchft.py")],
            python=python,
            RANK=str(rank),
            WORLD_SIZE=str(workers),
            TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{(processes.place / 'lighthouse_port').read_text()}",
            GROUP_TIMEOUT=str(group_timeout),
        )

    def start(processes: Processes, workers: int) -> None:
        port = free_port()
        (processes.place / "lighthouse_port").write_text(str(port))
        processes.start(
            "lighthouse",
            [
                "--min_replicas=1",
                f"--bind=127.0.0.1:{port}",
                "--join_timeout_ms=60000",
                f"--heartbeat_timeout_ms={heartbeat_ms}",
            ],
            python=str(lighthouse),
        )
        for rank in range(workers):
            begin(processes, workers, rank)

    return System(name, start, leader="lighthouse", relaunch=begin, missing=missing)


def launchers(program: Sequence[str] = ("program_engine.py",)) -> list[System]:
    """This engine's: relaunch by spawn, by fork, and a standby, then the last two with live rollback; what each runs as in `launcher`."""
    fork = known("--start_method=fork")
    standby = ("--standby_num=1", *fork)
    return [
        launcher("msrun: spawn", *known("--start_method=spawn"), program=program),
        launcher("msrun: fork", "--start_method=fork", program=program),
        launcher("msrun: standby", *standby, standbys=1, program=program),
        launcher("msrun: fork, live", "--start_method=fork", program=program, live=True),
        launcher("msrun: standby, live", *standby, standbys=1, program=program, live=True),
    ]


def plain_script() -> System:
    """`recovery msrun` with the program that torchrun is given, which knows nothing of it: all its processes start again."""
    return launcher(
        "msrun: fork, plain script",
        "--start_method=fork",
        "--restart=world",
        program=("program_torchrun.py",),
    )


def three_lines() -> System:
    """`recovery msrun` with a script that has three lines of ours: its processes stay, and run it again."""
    return launcher("msrun: fork, three lines", "--start_method=fork", program=("program_three_lines.py",))


def trainers() -> list[System]:
    """Each trainer that this interpreter has: recovered, and as torchrun restarts it."""
    found = []
    for name in ("lightning", "transformers", "accelerate"):
        if importlib.util.find_spec(name) is not None:
            program = ("program_trainers.py", name)
            found += [
                launcher(f"msrun: fork, {name}", "--start_method=fork", program=program),
                torchrun(*program, "plain", of=f", {name}"),
            ]
    return found


def all_systems(torchft_python: str) -> list[System]:
    """In the order of the table."""
    short = torchft(torchft_python, "torchft, both timeouts short", heartbeat_ms=500, group_timeout=1)
    return [
        *launchers(),
        three_lines(),
        plain_script(),
        torchrun(),
        torchft(torchft_python),
        short,
        *trainers(),
    ]


def chosen(names: Sequence[str], torchft_python: str) -> list[System]:
    """Those of these names, or whose names begin so; none given: all.

    Raises:
        SystemExit: a name is nobody's.
    """
    systems = all_systems(torchft_python)
    found: list[System] = [] if names else systems
    for name in names:
        exact = [one for one in systems if one.name == name]
        like = exact or [one for one in systems if one.name.startswith(name)]
        if not like:
            sys.exit(f"--system {name!r} is none of these: {'; '.join(one.name for one in systems)}")
        found += [one for one in like if one not in found]
    return found
