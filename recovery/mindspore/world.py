"""A world per generation, and per process: MindSpore cannot form a second one, so a process that survives a generation replaces itself.

Six facts of MindSpore 2.10 shape this file.

1. `release()` and `init()` again do not rebuild a cluster ("already been initialized"). So when a generation ends, the survivor
   execs its own command line, with its resume token: pid, rank and incarnation stay.
2. A main thread in AllReduce hears nothing for some 40 s, and no Python exception reaches it. So the exec is done at once, by the
   thread of the connection, wherever the main thread is.
3. MindSpore's scheduler takes every worker once. So every generation gets a fresh one, on a port of its own, started by rank 0:
   if rank 0 dies, the generation is over anyway, and the death of our own scheduler touches no world.
4. Its heartbeats bring a job down by themselves, after 20 to 34 s. Losses are noticed by our connections within milliseconds, so
   its patience is set beyond any job's length. (Switching them off, MS_DISABLE_HEARTBEAT, ended one process in ten with a SIGSEGV.)
   What only opens and closes its port confuses it: whether it listens is asked of the kernel.
5. `init()` holds the GIL until the last rank has come: no heartbeat of ours leaves meanwhile, and nobody could interrupt it. So the
   C++ function behind it is called first, through ctypes, which lets the GIL go; `init()` then finds everything there. (On Ascend
   `init()` does more than that one call, so there it is left alone.)
6. A worker that ends signs off at its scheduler, and closes the connection as soon as it has the answer, maybe while its receiving
   thread still looks for more. That one reads freed memory then, and the process ends with SIGSEGV behind its last line: once in some
   hundred ends on a busy machine. So nobody signs off: a process leaves as MindSpore's own leave after an exception, and its
   scheduler looks which are still connected (scheduler_program.py).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from mindspore import communication
from mindspore._c_expression import set_cluster_exit_with_exception

from recovery.mindspore import secure_connections
from recovery.mindspore.control_plane import program_variables, scheduler_of_this_process, start_early
from recovery.mindspore.init_function import initialize_without_gil
from recovery.training import framework_hooks
from recovery.training import init as script
from recovery.training.exception_hook import exception_hook_kept
from recovery.training.own_main import own_main
from recovery.training.session import Session

_logger = logging.getLogger("recovery.mindspore")


def init(backend_name: str | None = None) -> Session:
    """Join the cluster, wait for the plan and form this generation's world: in place of MindSpore's `init()`.

    In a process with MS_ROLE=MS_SCHED it serves as the scheduler until the job ends and exits the process. When the generation
    ends, the process starts again from the script's first line.

    Args:
        backend_name: hccl, nccl or mccl; None: what MindSpore takes for the device.

    Returns:
        The session of this entry; a script with `Model` does not need it.

    Raises:
        UsageError: MindSpore's own scheduler does not come up on rank 0.
        SystemExit: as for `recovery.init`.
    """
    session = script.init()
    _move_logs_to_incarnation(session.incarnation)
    # Facts 1 and 2. Called in the connection's thread.
    reason = "MindSpore cannot form a second world in one process"
    own_main.run_once(reason)
    session.on_interrupt(functools.partial(session.replace_process, reason))
    # An interrupt that came before this was registered has replaced nobody.
    session.check()
    _form(session, backend_name)
    return session


def _form(session: Session, backend_name: str | None) -> None:
    """Meet the other ranks."""
    secure_connections.secure_as_the_engine()
    if session.rank == 0:
        scheduler = scheduler_of_this_process()
        address = scheduler.serve(session, secure_connections.given_arguments())
        session.on_generation_end(scheduler.dismiss)
        session.publish_rendezvous(address)
    else:
        address = session.await_rendezvous()
    with _environment(program_variables(session, address, {})), exception_hook_kept():
        initialize_without_gil()
        communication.init(backend_name) if backend_name else communication.init()
        # Fact 6. It has this one effect.
        set_cluster_exit_with_exception()
    _logger.info(
        "event=world_formed generation=%d rank=%d scheduler=%s", session.generation, session.rank, address
    )


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables while MindSpore reads them: over an exec, they must again be what this process was started with."""
    before = {name: os.environ.get(name) for name in variables}  # noqa: TID251 - MindSpore reads them there only
    try:
        _set(variables)
        yield
    finally:
        _set({name: value or "" for name, value in before.items()})


def _set(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        if value:
            os.environ[name] = value  # noqa: TID251 - MindSpore reads them there only
        else:
            os.environ.pop(name, None)  # noqa: TID251 - as above


def _move_logs_to_incarnation(incarnation: int) -> None:
    """Move MindSpore's log files to `<GLOG_log_dir>/rank_<id>/incarnation_<n>`; without GLOG_log_dir there are none.

    It opens them when it is imported, before a process is admitted and knows its incarnation, in `<GLOG_log_dir>/rank_<RANK_ID or
    MS_NODE_ID>/logs`. An open file may be renamed: what it still writes goes along.
    """
    place = os.environ.get("GLOG_log_dir", "")  # noqa: SIM112, TID251 - MindSpore's variable, spelt so
    if not place:
        return
    for file in sorted(Path(place).glob(f"rank_*/logs/*.{os.getpid()}")):
        target = file.parent.with_name(f"incarnation_{incarnation}") / file.name
        try:
            target.parent.mkdir(exist_ok=True)
            file.rename(_free(target))
        except OSError as error:
            _logger.warning("event=log_not_moved path=%s %s", file, error)


def _free(target: Path) -> Path:
    """The program before an exec had the same process id, and its files stay."""
    candidates = itertools.chain(
        (target,), (target.with_name(f"{target.name}.{n}") for n in itertools.count(2))
    )
    return next(candidate for candidate in candidates if not candidate.exists())


_DATA_PLANE = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Barrier",
    "collective",
    "HCCL",
    "NCCL",
    "MCCL",
)
"""Words in 2.10's messages about a broken collective, where there is a message."""


def is_collective_error(error: BaseException) -> bool:
    """Is this MindSpore's data plane breaking? It raises RuntimeErrors, often without a message."""
    text = str(error)
    if not isinstance(error, RuntimeError):
        return False
    return any(word in text for word in _DATA_PLANE) if text else _is_mindspores(error)


def _is_mindspores(error: BaseException) -> bool:
    """Was it raised inside MindSpore, rather than by the script?"""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and "mindspore" in Path(frames[-1]).parts


framework_hooks.joined.append(start_early)
framework_hooks.register(
    warm_up=None,
    entry_states_of_it=(),
    collective_error=is_collective_error,
    kept_objects_of_it=None,
)
