"""What samplers count by themselves, such as their passes: a process that comes back builds them at 0, and the order of its pass would be another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Counted = dict[str, dict[str, Any]]
"""Numbers and text by attribute, by the sampler's place in the loader."""

_PLAIN = (bool, int, float, str)


class SamplerCounters:
    """Those of a loader: attributes that differ from what they were when this was made, which is before its first pass."""

    def __init__(self, loader: Any) -> None:
        """Look at what the loader takes its indexes from."""
        self._loader = loader
        self._built = self._now()

    def state(self) -> Counted:
        """Say where they stand. What no pass has changed is the script's."""
        return {
            place: changed
            for place, values in self._now().items()
            if (changed := {name: one for name, one in values.items() if one != self._built[place].get(name)})
        }

    def restore(self, state: Counted) -> None:
        """Put that back."""
        for place, part in samplers_of(self._loader):
            vars(part).update(state.get(place, {}))

    def _now(self) -> Counted:
        return {
            place: {name: value for name, value in vars(part).items() if type(value) in _PLAIN}
            for place, part in samplers_of(self._loader)
        }


def samplers_of(loader: Any) -> Iterator[tuple[str, Any]]:
    """What a loader takes its indexes from, each once, by where it hangs."""
    left, seen = [("loader", loader)], {id(loader)}
    while left:
        place, part = left.pop()
        for name in ("sampler", "batch_sampler"):
            inner = getattr(part, name, None)
            if hasattr(inner, "__dict__") and id(inner) not in seen:
                seen.add(id(inner))
                left.append((f"{place}.{name}", inner))
                yield f"{place}.{name}", inner
