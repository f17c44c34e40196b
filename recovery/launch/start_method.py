"""How the processes of one launcher begin: forked from its template where that is safe, else spawned, with one line why."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, TypeVar

import msgspec

from recovery import process_conditions
from recovery.errors import LaunchFailedError
from recovery.launch import console
from recovery.launch.child_process import ChildProcess
from recovery.launch.children import spawn
from recovery.launch.forkserver.fork_messages import Prepare, Prepared
from recovery.launch.forkserver.fork_requests import NotBegun
from recovery.launch.forkserver.template import READY_S, Template
from recovery.launch.job_spec import StartMethod
from recovery.launch.orphan_reaper import OrphanReaper

_SILENT_S = 10.0
"""Imports that take longer are said: nothing else happens meanwhile."""
_NAMED_MAX = 3
"""Packages in a line."""
_Result = TypeVar("_Result")
_TEMPLATES_MAX = 5
"""A template that ends again and again is not made for ever."""


async def _in_a_thread(work: Callable[[], _Result]) -> _Result:
    """Gives its result. Raises OSError where no thread can be started: then neither can a process."""
    try:
        return await asyncio.to_thread(work)
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


class TemplatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of a host is made of."""

    interpreter: str
    options: tuple[str, ...]
    environment: dict[str, str]
    """What the processes to be forked have in common."""
    cpus: tuple[int, ...]
    """Of one of them; none: all."""
    prepare: Callable[[], Prepare]
    """Reads the script, for each template again."""
    proxies_only: Callable[[], Prepare] | None = None
    """Where that is for worker proxies and their programs: for the proxies alone."""


def named_few(modules: Sequence[str]) -> str:
    """The packages of these modules, and of many the first."""
    packages = list(dict.fromkeys(name.partition(".")[0] for name in modules))
    packages = [name for name in packages if name not in sys.stdlib_module_names] or packages
    more = len(packages) - _NAMED_MAX
    return ", ".join(packages[:_NAMED_MAX]) + (f" and {more} more packages" if more > 0 else "")


class ProcessStarter:
    """Begins all processes of one launcher."""

    def __init__(self, method: StartMethod, plan: TemplatePlan | None, why_none: str = "") -> None:
        """Note it; `start` makes the template.

        Args:
            method: as the person who started the job has said.
            plan: of the template; None: its processes cannot be forked.
            why_none: then, why.
        """
        self._method, self._plan, self._why_none = method, plan, why_none
        self._conditions = process_conditions.note()
        """Of this launcher at its begin: each start of a process is made under these, the first one and the later ones."""
        self._template: Template | None = None
        self._was_ready = False
        self._was_refused = False
        """The system had nothing for a template (descriptors, processes, memory): another one is made once it has something."""
        self._made = 0
        self._making: list[asyncio.Task[None]] = []
        """One for each template. Processes wait for the first one; while another is made they are spawned."""
        self._one_at_a_time = asyncio.Lock()
        self._said: set[str] = set()
        self.strays = OrphanReaper()

    def start(self) -> None:
        """Make the template. A process that is to be forked waits for it."""
        self.strays.start()
        if self._method is not StartMethod.SPAWN:
            if self._plan is None:
                self._spawn_because(self._why_none)
            else:
                self._making.append(asyncio.create_task(self._make_or_spawn(self._plan)))

    async def first_template(self) -> None:
        """Until the template is made for the first time, or is given up: so long no process begins that is to be forked."""
        if self._making:
            await asyncio.shield(self._making[0])

    async def begin(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cpus: Sequence[int],
        log: IO[bytes],
        may_fork: bool,
    ) -> ChildProcess:
        """Begin a process.

        Args:
            command: what it runs.
            environment: all of it.
            cpus: processors it may use; none: all.
            log: where its output goes.
            may_fork: it is one of those that the template is made for.

        Raises:
            OSError: it could not be begun; nothing is left of it.
            LaunchFailedError: it cannot be forked, and the person who started the job wants nothing else.
        """
        for difference in process_conditions.differing(self._conditions):
            self._say_once(
                f"this launcher runs under other conditions now ({difference.text}); what it begins has those of its start"
            )
        if may_fork:
            await self.first_template()
        conditions = self._conditions_on(cpus)
        if may_fork and self._template is not None:
            async with self._one_at_a_time:
                # The process before it may have found the template of no use.
                template = self._template
                if template is not None:
                    with self.strays.undecided():
                        fork = partial(
                            template.begin,
                            command,
                            environment=environment,
                            conditions=conditions,
                            log=log.fileno(),
                        )
                        begun = await _in_a_thread(fork)
                        if isinstance(begun, int):
                            return self.strays.own(ChildProcess(begun))
                    self._not_begun(template, begun)
        elif may_fork and self._method is StartMethod.FORK and not self._was_ready:
            raise LaunchFailedError(
                process="--start_method=fork",
                reason=self._why_none,
                next_step="Give --start_method=auto, which spawns what cannot be forked.",
            )
        child = spawn(command, environment=environment, conditions=conditions, log=log)
        if may_fork and self._was_refused and self._plan is not None and self._made < _TEMPLATES_MAX:
            console.say("a process could be begun, so the template is made again", style="yellow")
            self._was_refused = False
            self._making.append(asyncio.create_task(self._make_or_spawn(self._plan)))
        return self.strays.own(child)

    def _conditions_on(self, cpus: Sequence[int]) -> process_conditions.Noted:
        noted = self._conditions
        return {**noted, "processors": sorted(cpus)} if cpus else noted

    def look_after(self) -> None:
        """Now and then: reap what was left behind, and make the template again where it has ended."""
        self.strays.reap()
        template = self._template
        if template is not None and template.process.has_ended:
            self._make_again(template, template.how_it_ended())

    async def end(self) -> None:
        """End the template, and whatever processes of the job have left behind; the launcher's own have ended."""
        for task in self._making:
            task.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        if self._template is not None:
            self._drop(self._template)
        await self.strays.end()

    # --- the template ----------------------------------------------------------------------------------------------------

    async def _make_or_spawn(self, plan: TemplatePlan) -> None:
        """A template saves time: whatever goes wrong with it, its processes are spawned."""
        try:
            await self._make(plan)
        except Exception as error:  # noqa: BLE001 - see above
            self._was_refused = True
            self._spawn_because(f"the template cannot be made ({type(error).__name__}: {error})")

    async def _make(self, plan: TemplatePlan) -> None:
        """Until it is ready, or is given up."""
        self._made += 1
        prepare = await asyncio.to_thread(plan.prepare)
        made = await self._template_of(plan, prepare)
        if isinstance(made, str) and plan.proxies_only and prepare.programs:
            self._say_once(f"the programs behind the worker proxies are spawned, not forked: {made}")
            prepare = await asyncio.to_thread(plan.proxies_only)
            made = await self._template_of(plan, prepare)
        if isinstance(made, str):
            self._spawn_because(made)
        else:
            self._template, self._was_ready = made, True

    async def _template_of(self, plan: TemplatePlan, prepare: Prepare) -> Template | str:
        """One that is ready, or why there is none."""
        if prepare.refusal:
            return prepare.refusal
        try:
            template = Template(
                prepare,
                environment=plan.environment,
                interpreter=plan.interpreter,
                options=plan.options,
                conditions=self._conditions_on(plan.cpus),
            )
        except OSError as error:
            self._was_refused = True
            return f"the template process cannot be started ({error.strerror})"
        self.strays.keep(template.process.pid)
        try:
            ready = await self._awaited(template, prepare)
        except asyncio.CancelledError:
            self._drop(template)
            raise
        if isinstance(ready, NotBegun):
            self._drop(template)
            return ready.reason
        who = "worker proxies and their programs" if prepare.programs else "workers"
        said = f"{ready.module_count} modules in {ready.took_ms / 1000:.1f} s; {who} are forked from it"
        printed = template.last_line()
        said += f"; it has printed last: {printed}" if printed else ""
        console.say(f"the template (pid {template.process.pid}) has imported {said}")
        return template

    async def _awaited(self, template: Template, prepare: Prepare) -> Prepared | NotBegun:
        """Until it has imported, or has not; one line says so when that takes long."""
        waiting = asyncio.create_task(asyncio.to_thread(template.await_ready))
        done, _ = await asyncio.wait({waiting}, timeout=_SILENT_S)
        if not done:
            last = template.last_line()
            said = f"; it has printed last: {last}" if last else ""
            console.say(
                f"the template (pid {template.process.pid}) still imports after {_SILENT_S:g} s "
                f"({named_few(prepare.modules)}); workers begin when it is done, {READY_S:g} s at most{said}",
                style="yellow",
            )
        return await waiting

    def _not_begun(self, template: Template, begun: NotBegun) -> None:
        """A process that was to be forked is spawned."""
        if begun.over:
            self._make_again(template, begun.reason)
        else:
            self._spawn_because(begun.reason, "one process is")

    def _make_again(self, template: Template, reason: str) -> None:
        """Make another one, unless that was done already; meanwhile processes are spawned."""
        if self._template is not template or self._plan is None:
            return
        self._drop(template)
        said = f"the template (pid {template.process.pid}) is of no use any more: {reason}"
        if self._made >= _TEMPLATES_MAX:
            console.say(f"{said}; it was made {self._made} times, so workers are spawned", style="yellow")
            return
        console.say(f"{said}; it is made again, and workers are spawned meanwhile", style="yellow")
        self._making.append(asyncio.create_task(self._make_or_spawn(self._plan)))

    def _drop(self, template: Template) -> None:
        if self._template is template:
            self._template = None
        template.end()
        self.strays.forget(template.process.pid)

    def _spawn_because(self, reason: str, who: str = "workers are") -> None:
        """Say it once. Where only forks are wanted, what is refused instead says it."""
        self._why_none = self._why_none or reason
        if self._method is not StartMethod.FORK or self._was_ready:
            self._say_once(f"{who} spawned, not forked: {reason}")

    def _say_once(self, said: str) -> None:
        if said not in self._said:
            self._said.add(said)
            console.say(said, style="yellow")
