"""What the fields of messages may hold: bounds that the decoder checks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RequestId, ResumeToken, RunId

NODE_ID_PATTERN = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
"""A node id names files (`workers/<node_id>.db`), so it holds nothing that a path or a log line could be led astray by."""

NodeName = Annotated[NodeId, msgspec.Meta(pattern=NODE_ID_PATTERN)]
ReplacedName = Annotated[NodeId, msgspec.Meta(pattern=rf"\A\Z|{NODE_ID_PATTERN}")]
"""A node id, or empty."""
_COUNT = msgspec.Meta(ge=0, le=2**53)
"""Fits SQLite's integers and every JSON reader's."""
Count = Annotated[int, _COUNT]
RunNumber = Annotated[RunId, _COUNT]
RankNumber = Annotated[Rank, _COUNT]
GenerationNumber = Annotated[Generation, _COUNT]
IncarnationNumber = Annotated[Incarnation, _COUNT]
RequestName = Annotated[RequestId, msgspec.Meta(min_length=1, max_length=64)]
"""Not empty: by its name a request is answered, and its repeat known."""
RANKS_MAX = 4_096
"""Of a list of ranks: it stays far below the frame limit."""
Ranks = Annotated[tuple[RankNumber, ...], msgspec.Meta(max_length=RANKS_MAX)]
Words = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=256)], ...], msgspec.Meta(max_length=64)]
"""Together far below the limit of a message before admission."""
Token = Annotated[ResumeToken, msgspec.Meta(max_length=64)]
FINGERPRINTS_MAX = 64
Fingerprints = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=256)], Annotated[str, msgspec.Meta(max_length=64)]],
    msgspec.Meta(max_length=FINGERPRINTS_MAX),
]
"""By the names of tensors: what is alike on two ranks where the tensors are, and is not where one bit differs."""
Text = Annotated[str, msgspec.Meta(max_length=16_384)]
ShortText = Annotated[str, msgspec.Meta(max_length=1_024)]
