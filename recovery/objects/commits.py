"""Steps in object storage: each rank adds its contribution, and whoever finds the last one creates the commit object.

Keys, relative to `<job>/run-<run>/`:
    files/<unique>/rank-<n>/<number>                    what a contribution holds; each upload under a prefix of its own
    step-<step>/generation-<generation>/rank-<n>.json   where the contribution of a rank lies; created when all of it is there
    commits/<step, 12 digits>.json                      the contributions of all ranks; a step without it is none
Job names are quoted as parts of a URL.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import Digest, Positive
from recovery.checkpoint.fetched import Receipt, sealed_bytes
from recovery.checkpoint.verify import Wanted, check
from recovery.core.converter import UNREADABLE
from recovery.core.held import HeldCheckpoint
from recovery.core.message_fields import Count, ShortText
from recovery.errors import CheckpointManifestError, CheckpointWriteError
from recovery.objects.store import ObjectStore

BYTES_MAX = 8 << 20
"""A rank takes about 200 bytes of a commit object; what is larger is none."""

_Shape = TypeVar("_Shape", bound=msgspec.Struct)
_COMMIT_NAME = re.compile(r"([0-9]{12})\.json")


class Contribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the contribution of one rank lies."""

    rank: Count
    digest: Digest
    """As `Manifest.digest`."""
    prefix: ShortText
    """Of its keys; a manifest and numbered files lie there."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of which every rank's contribution is in the storage."""

    job: ShortText
    run: Count
    world_size: Positive
    step: Count
    generation: Count
    ranks: tuple[Contribution, ...]
    """In the order of ranks, all of them."""


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    body: msgspec.Raw
    sha256: str


_sealed = msgspec.json.Decoder(_Sealed)
_commit = msgspec.json.Decoder(Commit)
_contribution = msgspec.json.Decoder(Contribution)


def upload(store: ObjectStore, checkpoint: Path) -> Commit | None:
    """Add a published contribution to its step, and commit the step if it was the last one.

    Args:
        store: where to.
        checkpoint: the first file; its manifest stands beside it. Both are verified here once more.

    Returns:
        What is committed of this step; None: other ranks are still to come.

    Raises:
        CheckpointError: the checkpoint is damaged, or the storage did not take or give something. May be called again.
    """
    manifest = check(checkpoint)
    base = _base(manifest.job, manifest.run)
    step = f"{base}/step-{manifest.step}/generation-{manifest.generation}"
    if _contribution_of(store, step, manifest.rank) is None:
        prefix = f"{base}/files/{secrets.token_hex(16)}/rank-{manifest.rank}"
        for number, path in enumerate(manifest.paths(checkpoint.parent)):
            store.put(f"{prefix}/{number}", path)
        store.create(f"{prefix}/manifest.json", sealed_bytes(checkpoint))
        added = Contribution(rank=manifest.rank, digest=manifest.digest, prefix=prefix)
        store.create(f"{step}/rank-{manifest.rank}.json", _seal(added))
    found = [_contribution_of(store, step, rank) for rank in range(manifest.world_size)]
    own = found[manifest.rank]
    if own is None or own.digest != manifest.digest:
        reason = "another contribution of this rank to this step and generation was there first"
        raise CheckpointWriteError(path=f"{store.url}/{step}/rank-{manifest.rank}.json", reason=reason)
    whole = tuple(one for one in found if one is not None)
    if len(whole) < manifest.world_size:
        return None
    commit = Commit(
        job=manifest.job,
        run=manifest.run,
        world_size=manifest.world_size,
        step=manifest.step,
        generation=manifest.generation,
        ranks=whole,
    )
    store.create(_commit_key(base, manifest.step), _seal(commit))
    return read(store, manifest.job, manifest.run, manifest.step)


def read(store: ObjectStore, job: str, run: int, step: int) -> Commit | None:
    """Read the commit object of a step; None: the step is not committed here.

    Raises:
        CheckpointManifestError: it is damaged or another's, or the storage did not give it.
    """
    key = _commit_key(_base(job, run), step)
    content = store.read(key, bytes_max=BYTES_MAX)
    if content is None:
        return None
    commit = _unsealed(key, content, _commit)
    if (commit.job, commit.run, commit.step) != (job, run, step):
        raise CheckpointManifestError(path=key, reason="it is the commit of another step")
    if tuple(one.rank for one in commit.ranks) != tuple(range(commit.world_size)):
        raise CheckpointManifestError(path=key, reason="it does not name every rank once")
    return commit


def steps(store: ObjectStore, job: str, run: int) -> tuple[int, ...]:
    """List the steps whose commit objects the storage shows, newest first: a hint, which `read` proves.

    Raises:
        CheckpointManifestError: the storage did not answer.
    """
    found = (_COMMIT_NAME.fullmatch(name) for name in store.names(f"{_base(job, run)}/commits"))
    return tuple(sorted((int(one[1]) for one in found if one), reverse=True))


def download(store: ObjectStore, commit: Commit, rank: int, directory: Path) -> HeldCheckpoint:
    """Bring the contribution of a rank here, published only if all of it is what the commit names.

    Raises:
        CheckpointError: it is damaged or gone, or there is no space; nothing of it has a checkpoint's name then.
    """
    from_there = commit.ranks[rank]
    wanted = Wanted(
        job=commit.job,
        run=commit.run,
        rank=rank,
        world_size=commit.world_size,
        step=commit.step,
        digest=from_there.digest,
    )
    key = f"{from_there.prefix}/manifest.json"
    content = store.read(key, bytes_max=manifests.BYTES_MAX)
    if content is None:
        raise CheckpointManifestError(path=key, reason="it is gone from the storage")
    with Receipt(directory, wanted) as receipt:
        for number in range(len(receipt.accept(content).files)):
            receipt.begin(number)
            for piece in store.pieces(f"{from_there.prefix}/{number}"):
                receipt.take(piece)
            receipt.end(number)
        return receipt.publish()


def _contribution_of(store: ObjectStore, step: str, rank: int) -> Contribution | None:
    key = f"{step}/rank-{rank}.json"
    content = store.read(key, bytes_max=BYTES_MAX)
    return None if content is None else _unsealed(key, content, _contribution)


def _base(job: str, run: int) -> str:
    return f"{quote(job, safe='')}/run-{run}"


def _commit_key(base: str, step: int) -> str:
    return f"{base}/commits/{step:012}.json"


def _seal(what: Contribution | Commit) -> bytes:
    body = msgspec.json.encode(what)
    return msgspec.json.encode(_Sealed(body=msgspec.Raw(body), sha256=hashlib.sha256(body).hexdigest()))


def _unsealed(key: str, content: bytes, decoder: msgspec.json.Decoder[_Shape]) -> _Shape:
    try:
        sealed = _sealed.decode(content)
        body = bytes(sealed.body)
        if hashlib.sha256(body).hexdigest() == sealed.sha256:
            return decoder.decode(body)
    except UNREADABLE as error:
        raise CheckpointManifestError(path=key, reason=f"it cannot be read ({error})") from error
    raise CheckpointManifestError(path=key, reason="its own digest does not fit")
