"""What `session.keep` holds, from one world to the next: DistributedDataParallel among it, and what torch.compile has made.

Five facts of PyTorch 2.13:

1. The reducer of DistributedDataParallel takes another group (`_update_process_group`), also behind a backward pass that was broken off. Its buckets
   are those that a new one would make, for none is ever rebuilt in our worlds (process_group.py, fact 2).
2. Where a reducer drops the last reference to a group, it waits for that group's thread with the GIL in its hand (ended_groups.py, fact 1). So
   what is kept lets go of its group while the world still has it, and meanwhile has a group that nothing was ever begun in.
3. With `static_graph` the first pass has a collective more than the later ones: ranks with a kept wrapper and a rank with a new one would
   wait for each other for ever.
4. A communication hook, and what else is put on a wrapper behind its construction, would be put on it twice: torch refuses that.
5. A thread of gloo may be at work on a bucket when its world is broken, and comes back to it when the machine lets it: what it wrote late
   would be part of the next sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import distributed, nn
from torch._C._distributed_c10d import HashStore, ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from recovery.errors import UsageError
from recovery.torch import devices
from recovery.torch.compiled_code import compiled_code
from recovery.torch.ended_groups import wait_until_idle

_GLOO = "gloo"


class KeptObjects:
    """See `recovery.training.live.KeptObjects`."""

    def __init__(self) -> None:
        """Nothing is kept."""
        self._between: ProcessGroup | None = None
        """What wrappers have between two worlds (fact 2)."""

    def leave_world(self, kept: Mapping[str, object]) -> str:
        """The generation ends: let go of its world. Gives why these objects cannot be taken into another one; empty: they can."""
        objects = [*_all_in(kept.values())]
        wrappers = [one for one in objects if isinstance(one, DistributedDataParallel)]
        used = [one for one in wrappers if one.process_group is not self._between]
        why_not = next((reason for one in used if (reason := _why_not(one))), "")
        if not why_not:
            for one in used:
                self._give_group(one, self._group_between())
        compiled_code.keep([] if why_not else objects)
        return why_not

    def enter_world(self, kept: object) -> None:
        """The object is used again.

        Raises:
            UsageError: there is no world yet.
        """
        wrappers = [one for one in _all_in([kept]) if isinstance(one, DistributedDataParallel)]
        group = distributed.group.WORLD if wrappers else None
        if group is None:
            if wrappers:
                raise UsageError(
                    field="session.keep",
                    reason="it holds a DistributedDataParallel, and there is no world that it could be used in",
                    next_step="Call recovery.torch.init_process_group(session) first.",
                )
            return
        if any(one.process_group is self._between for one in wrappers):
            wait_until_idle(looks=1)
        for one in wrappers:
            if one.process_group is self._between:
                self._give_group(one, group)

    def let_go(self) -> None:
        """Nothing that `leave_world` was given is kept any more."""
        compiled_code.let_go()

    def _group_between(self) -> ProcessGroup:
        if self._between is None:
            self._between = ProcessGroup(HashStore(), 0, 1)
        return self._between

    @staticmethod
    def _give_group(wrapper: DistributedDataParallel, group: ProcessGroup) -> None:
        wrapper._update_process_group(group)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no public call
        # As of a new one: a pass that was broken off in no_sync() has left them otherwise, and a new rank's first pass has a collective more.
        wrapper.require_forward_param_sync = wrapper.require_backward_grad_sync = True


kept_objects = KeptObjects()


def _why_not(wrapper: DistributedDataParallel) -> str:
    """Why this one cannot be used in another world than it was made in."""
    if not hasattr(wrapper, "_update_process_group"):
        return "this release of torch gives DistributedDataParallel no other group"
    if not distributed.is_initialized() or wrapper.process_group is not distributed.group.WORLD:
        return "a DistributedDataParallel has a group of its own"
    if devices.NCCL in distributed.get_backend_config(wrapper.process_group):
        return "a DistributedDataParallel is used with nccl"
    if wrapper.static_graph:
        return "a DistributedDataParallel has static_graph"
    if wrapper._get_ddp_logging_data().get("comm_hook"):  # type: ignore[no-untyped-call]  # noqa: SLF001 - one of torch's own is in no list
        return "a DistributedDataParallel has a communication hook"
    if wrapper._delay_all_reduce_params or wrapper._use_python_reducer:  # noqa: SLF001 - given to it when it was made
        return "a DistributedDataParallel adds gradients in a way of its own (delay_all_reduce_named_params, python_reducer)"
    return ""


def _all_in(kept: Iterable[object]) -> Iterator[object]:
    """Each kept object, what is in lists and the like, and of a module all that it is made of."""
    for item in kept:
        if isinstance(item, nn.Module):
            yield from item.modules()
        elif isinstance(item, Mapping):
            yield from _all_in(item.values())
        elif isinstance(item, (list, tuple)):
            yield from _all_in(item)
        else:
            yield item
