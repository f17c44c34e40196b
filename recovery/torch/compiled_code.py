"""What torch.compile has made of a program, from one generation to the next.

It counts what it has made of each piece of code against one limit, and beyond it runs that code as it is written, which gives other bits. Each
entry of the training function builds again what `session.keep` does not hold: so it begins afresh at a generation's end. Where something compiled is kept,
that would be made again as well (seconds). Then the limit counts from what there is: nothing that is built again meets it sooner than in a new process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from recovery.torch.module_names import is_compiled

_logger = logging.getLogger("recovery.torch")


class CompiledCode:
    """One per process, as what torch.compile knows is."""

    def __init__(self) -> None:
        """Nothing compiled is kept."""
        self._is_kept = False
        self._limits: tuple[int, int] | None = None
        """The program's own limit, and what it is now; None: it is the program's."""

    def keep(self, objects: Iterable[object]) -> None:
        """These outlive the generation, and nothing else does."""
        self._is_kept = any(_is_compiled(item) for item in objects)

    def end_generation(self) -> None:
        """Forget what was compiled, or have the limit count from here. It may be called again before the next generation."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or not _has_compiled(dynamo):
            return
        limit, most = self._own_limit(dynamo), _most_compiled(dynamo)
        if self._is_kept and 0 <= most <= limit:
            self._limits = (limit, limit + most)
            dynamo.config.recompile_limit = limit + most
            return
        if self._is_kept:
            _logger.info(
                "event=compiled_again one piece of code was compiled %d times (torch._dynamo.config.recompile_limit=%d): all that is "
                "compiled is compiled again. Give session.keep everything that is compiled.",
                most,
                limit,
            )
        self._begin_afresh(dynamo, limit)

    def let_go(self) -> None:
        """Nothing that `keep` was given is kept any more."""
        if self._is_kept:
            self._is_kept = False
            self.end_generation()

    def _own_limit(self, dynamo: ModuleType) -> int:
        now: int = dynamo.config.recompile_limit
        # The program may set another one at each entry.
        return self._limits[0] if self._limits is not None and self._limits[1] == now else now

    def _begin_afresh(self, dynamo: ModuleType, limit: int) -> None:
        if self._limits is not None:
            dynamo.config.recompile_limit, self._limits = limit, None
        dynamo.reset()


compiled_code = CompiledCode()


def _has_compiled(dynamo: ModuleType) -> bool:
    """Did torch.compile see any code since it last began afresh? Where there is a GPU, to begin afresh imports its compiler: 3.7 s."""
    # Read in torch 2.13; of a release that has it elsewhere nobody knows.
    seen = getattr(getattr(dynamo, "convert_frame", None), "input_codes", None)
    return bool(getattr(seen, "seen", True))


def _most_compiled(dynamo: ModuleType) -> int:
    """How often the piece of code that was compiled most often was, since torch.compile last began afresh; -1: nobody knows, as above."""
    counts: Any = getattr(getattr(dynamo, "convert_frame", None), "FRAME_COMPILE_COUNTER", None)
    return -1 if counts is None else max(counts.values(), default=0)


def _is_compiled(item: object) -> bool:
    if isinstance(item, torch.nn.Module):
        return is_compiled(item) or item._compiled_call_impl is not None  # noqa: SLF001 - `compile()` of a module
    return hasattr(item, "_torchdynamo_orig_callable")
