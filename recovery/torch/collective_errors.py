"""Which errors are the data plane breaking, rather than the user's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import distributed

_DATA_PLANE = re.compile(
    r"gloo/(transport|rendezvous)/|connection (closed|reset) by peer|broken pipe|tcpstore|socket timeout"
    r"|nccl (communicator was aborted|error|operation)|ncclremoteerror|ncclsystemerror|ncclinternalerror",
    re.IGNORECASE,
)
"""Words in RuntimeErrors of torch 2.13 about a broken world. Its errors about arguments name ProcessGroupGloo, but none of these."""


_MISUSED = re.compile(r"ncclInvalidUsage|ncclInvalidArgument")
"""Words in errors that another world would not fix: two ranks on one GPU, above all."""


def is_collective_error(error: BaseException) -> bool:
    """Is this the data plane breaking, or anything that followed from it?"""
    return any(_is_data_plane(link) for link in _chain(error))


def _is_data_plane(error: BaseException) -> bool:
    text = str(error)
    if _MISUSED.search(text):
        return False
    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and bool(_DATA_PLANE.search(text))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
