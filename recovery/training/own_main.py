"""A program that the engine runs as `__main__` itself, so that the same process can run it again behind a generation's end.

Its libraries stay loaded; what the program itself has made is forgotten, and what it finds is as at its first line (`fresh_main`). What
cannot be done twice in a process (a library that refuses a second start, a thread of the program that goes on) costs one exec in place
with its reason, and from then on the script is replaced so each time (`recovery.training.init`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from recovery.training.fresh_main import FreshMain


class Member(Protocol):
    """What a program becomes by joining its job."""

    def left(self, error: BaseException | None) -> bool:
        """The program was left. Gives whether it is to be run again; raises what ends the process otherwise."""
        ...

    def replace(self, reason: str) -> None:
        """Start the process's command line again, as the same incarnation."""
        ...


class OwnMain:
    """One per process, whose program it runs."""

    def __init__(self) -> None:
        """Nothing runs, nobody has joined."""
        self.member: Member | None = None
        """Set by the program when it joins its job."""
        self.has_joined = False
        """Has the program joined in this run of it?"""
        self._pid = os.getpid()
        self._runs, self._why_once = 0, ""

    @property
    def may_run_again(self) -> bool:
        """Does this process run its program through here, rather than having inherited it by a fork?"""
        return self._runs > 0 and os.getpid() == self._pid

    def run_once(self, reason: str) -> None:
        """Have the process replaced behind a generation's end, whatever the program does.

        Args:
            reason: for people: what of it cannot be done twice.
        """
        self._why_once = reason

    def run(self, program: Callable[[], None]) -> None:
        """Run it, and again as often as its generation ends before it is done.

        Args:
            program: runs it once. What it raises passes through when it is over.
        """
        self._pid, fresh = os.getpid(), FreshMain()
        while True:
            self._runs, self.has_joined = self._runs + 1, False
            if not self._again(program):
                return
            if reason := self._why_once or fresh.restore():
                self._replace(reason)

    def _again(self, program: Callable[[], None]) -> bool:
        try:
            program()
        except BaseException as error:
            if not self._may_go_on(error) or not self._left(error):
                raise
            return True
        return self._may_go_on(None) and self._left(None)

    def _may_go_on(self, error: BaseException | None) -> bool:
        """Does the member say what follows? It may not have joined, and a fork of this process has no part in the job."""
        if self.member is None or not self.may_run_again:
            return False
        if not self.has_joined:
            # A signal is none of the program's doing: the member leaves in order.
            if error is not None and not isinstance(error, Exception | SystemExit):
                return True
            if error is not None and self._runs > 1:
                self._replace(f"{type(error).__name__}: {error}")
            return False
        return True

    def _left(self, error: BaseException | None) -> bool:
        assert self.member is not None, "it has joined"
        return self.member.left(error)

    def _replace(self, reason: str) -> None:
        assert self.member is not None, "it has joined once"
        self.member.replace(reason)


own_main = OwnMain()
"""This process's."""
