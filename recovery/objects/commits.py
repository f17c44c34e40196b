"""Steps in object storage: each rank adds its contribution, and the rank that finds the last one creates the commit object.

Keys, relative to `<job>/run-<run>/`; STEP is `<generation>-<step>`, 12 digits each, so that names are in the order of training:
    steps/STEP/files/<unique>/<number>  what a contribution holds; each upload under a prefix of its own
    steps/STEP/rank-<n>.json            where the contribution of a rank lies; created when all of it is there
    steps/STEP/damaged.json             a rank has found its contribution damaged: nobody goes back to this step any more
    commits/STEP.json                   the contributions of all ranks; a step without it is none
    turns/...                           of releases that agreed here on what is sent next; not read
Job names are quoted as parts of a URL.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import Digest, Manifest, Positive
from recovery.checkpoint.fetched import Receipt, sealed_bytes, there_already
from recovery.checkpoint.verify import Wanted
from recovery.core.converter import UNREADABLE
from recovery.core.held import HeldCheckpoint
from recovery.core.message_fields import Count, ShortText
from recovery.core.policy.retention import OBJECT_STEPS
from recovery.errors import CheckpointManifestError, CheckpointWriteError
from recovery.objects.store import ObjectStore

BYTES_MAX = 8 << 20
"""A rank takes about 200 bytes of a commit object; what is larger is none."""

_Shape = TypeVar("_Shape", bound=msgspec.Struct)
_COMMIT_NAME = re.compile(r"([0-9]{12})-([0-9]{12})\.json")


class At(NamedTuple):
    """A step as one generation has trained it. Later training is greater, also where it was rolled back before."""

    generation: int
    step: int

    @property
    def name(self) -> str:
        """As it stands in keys."""
        return f"{self.generation:012}-{self.step:012}"


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


def send(store: ObjectStore, checkpoint: Path, manifest: Manifest) -> Commit | None:
    """Add a contribution to its step, and commit the step if it was the last one.

    Args:
        store: where to.
        checkpoint: the first file.
        manifest: of it; a rank that downloads verifies the files against it.

    Returns:
        What is committed of this step; None: other ranks are still to come.

    Raises:
        CheckpointError: the storage did not take or give something. May be called again.
    """
    base, at = base_of(manifest.job, manifest.run), At(manifest.generation, manifest.step)
    step = step_key(base, at)
    if _contribution_of(store, step, manifest.rank) is None:
        prefix = f"{step}/files/{secrets.token_hex(16)}"
        for number, path in enumerate(manifest.paths(checkpoint.parent)):
            store.put(f"{prefix}/{number}", path)
        store.create(f"{prefix}/manifest.json", sealed_bytes(checkpoint))
        added = Contribution(rank=manifest.rank, digest=manifest.digest, prefix=prefix)
        store.create(f"{step}/rank-{manifest.rank}.json", seal(added))
    found = [_contribution_of(store, step, rank) for rank in range(manifest.world_size)]
    own = found[manifest.rank]
    if own is None or own.digest != manifest.digest:
        reason = "another contribution of this rank to this step and generation was there first"
        raise CheckpointWriteError(path=f"{store.url}/{step}/rank-{manifest.rank}.json", reason=reason)
    whole = tuple(contribution for contribution in found if contribution is not None)
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
    store.create(commit_key(base, at), seal(commit))
    return read_commit(store, manifest.job, manifest.run, at)


def read_commit(store: ObjectStore, job: str, run: int, at: At) -> Commit | None:
    """Read the commit object of a step; None: the step is not committed here.

    Raises:
        CheckpointManifestError: it is damaged or another's, or the storage did not give it.
    """
    key = commit_key(base_of(job, run), at)
    content = store.read(key, bytes_max=BYTES_MAX)
    if content is None:
        return None
    commit = unsealed(key, content, _commit)
    if (commit.job, commit.run, commit.generation, commit.step) != (job, run, *at):
        raise CheckpointManifestError(path=key, reason="it is the commit of another step")
    if tuple(contribution.rank for contribution in commit.ranks) != tuple(range(commit.world_size)):
        raise CheckpointManifestError(path=key, reason="it does not name every rank once")
    return commit


def steps(store: ObjectStore, job: str, run: int) -> tuple[At, ...]:
    """List the steps whose commit objects the storage shows, newest first: a hint, which `read` proves.

    Raises:
        CheckpointManifestError: the storage did not answer.
    """
    found = (_COMMIT_NAME.fullmatch(name) for name in store.names(f"{base_of(job, run)}/commits"))
    return tuple(sorted((At(int(match[1]), int(match[2])) for match in found if match), reverse=True))


def retain(
    store: ObjectStore, job: str, run: int, counts: Callable[[At], bool] = lambda at: True
) -> tuple[At, ...]:
    """Remove what is older than the newest committed steps of a run that count, committed or not. May be called by several ranks at a time.

    A commit object goes first, so that nobody believes a step of which a part is gone.

    Returns:
        The committed steps that were removed.

    Raises:
        CheckpointError: some may still be there; the next call goes on.
    """
    committed = steps(store, job, run)
    kept = [at for at in committed if counts(at)][:OBJECT_STEPS]
    if len(kept) < OBJECT_STEPS:
        return ()
    base, oldest = base_of(job, run), kept[-1]
    removed = tuple(at for at in committed if at < oldest)
    for at in removed:
        store.remove(commit_key(base, at))
    for name in store.names(f"{base}/steps"):
        # A step that never was committed, or whose upload was cut off, goes as well.
        if name < oldest.name:
            store.remove_all(f"{base}/steps/{name}")
    return removed


def download(
    store: ObjectStore,
    commit: Commit,
    rank: int,
    directory: Path,
    still_owns_rank: Callable[[], bool] = lambda: True,
) -> HeldCheckpoint:
    """Bring the contribution of a rank here, published only if all of it is what the commit names.

    What lies there already, intact, is not brought again.

    Args:
        store: where from.
        commit: of which step.
        rank: whose.
        directory: where to.
        still_owns_rank: as for `publish.StagedCheckpoint.finish`.

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
    already = there_already(directory, wanted)
    if already is not None:
        return already
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
        return receipt.publish(still_owns_rank)


def mark_damaged(store: ObjectStore, commit: Commit) -> None:
    """Say to all ranks that one of them cannot have this step from here.

    Without it the others come with this step, that one with the step before, and there is none in common.

    Raises:
        CheckpointWriteError: it may not be said.
    """
    store.create(_mark_key(commit.job, commit.run, At(commit.generation, commit.step)), b"{}")


def is_damaged(store: ObjectStore, job: str, run: int, at: At) -> bool:
    """Has any rank found this step damaged?

    Raises:
        CheckpointManifestError: the storage did not answer.
    """
    return store.read(_mark_key(job, run, at), bytes_max=BYTES_MAX) is not None


def _mark_key(job: str, run: int, at: At) -> str:
    return f"{step_key(base_of(job, run), at)}/damaged.json"


def _contribution_of(store: ObjectStore, step: str, rank: int) -> Contribution | None:
    key = f"{step}/rank-{rank}.json"
    content = store.read(key, bytes_max=BYTES_MAX)
    return None if content is None else unsealed(key, content, _contribution)


def base_of(job: str, run: int) -> str:
    """Begins every key of a run."""
    return f"{quote(job, safe='')}/run-{run}"


def step_key(base: str, at: At) -> str:
    """Begins the keys of what the ranks have added to a step."""
    return f"{base}/steps/{at.name}"


def commit_key(base: str, at: At) -> str:
    """Of the object that makes a step count."""
    return f"{base}/commits/{at.name}.json"


def seal(what: msgspec.Struct) -> bytes:
    """Encode it, with the digest of itself."""
    body = msgspec.json.encode(what)
    return msgspec.json.encode(_Sealed(body=msgspec.Raw(body), sha256=hashlib.sha256(body).hexdigest()))


def unsealed(key: str, content: bytes, decoder: msgspec.json.Decoder[_Shape]) -> _Shape:
    """Decode what `seal` has made.

    Raises:
        CheckpointManifestError: it is damaged.
    """
    try:
        sealed = _sealed.decode(content)
        body = bytes(sealed.body)
        if hashlib.sha256(body).hexdigest() == sealed.sha256:
            return decoder.decode(body)
    except UNREADABLE as error:
        raise CheckpointManifestError(path=key, reason=f"it cannot be read ({error})") from error
    raise CheckpointManifestError(path=key, reason="its own digest does not fit")
