"""What a file system may lack (9p, vboxsf, exFAT, some CIFS), each in words of its own, and what it may have run out of.

An fsync of a directory, which makes the names in it durable, hard links, modes of files: the three are asked for by a try, since no list of kinds
would be whole.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_logger = logging.getLogger("recovery.files")
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)
NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK))
"""What link(2) says where there are no hard links."""
_MEANINGS = {
    errno.EFBIG: "a file would be larger than this process may make one (ulimit -f)",
    errno.EMFILE: "this process may open no more files (ulimit -n)",
    errno.ENFILE: "this host can open no more files (fs.file-max)",
    errno.EROFS: "it is mounted so, or the kernel has made it so behind an error",
    errno.EIO: "the disk or the way to it fails",
}
"""Of what the system says in two words."""
NEXT_STEPS = {
    errno.EFBIG: "Raise that limit (`ulimit -f unlimited`).",
    errno.EMFILE: "Raise that limit (`ulimit -n`), or find what keeps files open.",
    errno.ENFILE: "Find what keeps files open on this host, or raise that limit.",
    errno.EROFS: "Choose a directory on a file system that can be written.",
    errno.EIO: "See what the kernel says of that disk (`dmesg`), or choose a directory on another one.",
}
"""What a person can do about it, in a sentence."""
WITHOUT_SYNC = "its file system makes no names durable: a power cut may take back the newest"
WITHOUT_LINKS = "its file system has no hard links"
SHARED = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "virtiofs", "fuse.sshfs"),
        *("lustre", "beegfs", "beegfs_nodev", "gpfs", "wekafs", "ocfs2", "gfs2", "pvfs2"),
        *(
            "ceph",
            "fuse.ceph",
            "fuse.ceph-fuse",
            "fuse.glusterfs",
            "fuse.juicefs",
            "fuse.mfs",
            "fuse.seaweedfs",
        ),
        *("fuse.s3fs", "fuse.rclone", "fuse.mountpoint-s3", "fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse2"),
    )
)
"""File systems that several hosts share, by their names in /proc/mounts: on these SQLite's shared memory or the kernel's locks do not hold between
hosts."""
_MOUNTS = Path("/proc/self/mounts")
"""Of the kernel. /etc/mtab, which psutil reads where it is a file, may be one that an image has brought."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How it writes a blank, and what else would part the fields of a line."""
_LOCAL_FUSE = ("fuseblk", "fuse.fuse-overlayfs")
"""What a process of this host serves from a disk of this host."""
_said: set[int] = set()
"""Devices whose file system makes no names durable."""


def sync_names(directory: int) -> None:
    """Make the names in an opened directory durable.

    A file system without this call is said once, and what was to be done goes on: content is durable all the same.

    Raises:
        OSError: the fsync failed.
    """
    if _syncs_names(directory):
        return
    device = os.fstat(directory).st_dev
    if device not in _said:
        _said.add(device)
        _logger.warning(
            "event=directory_not_synced path=%r reason=%r %s; saves go on",
            str(Path(f"/proc/self/fd/{directory}").readlink()),
            os.strerror(errno.EINVAL),
            WITHOUT_SYNC,
        )


def _syncs_names(directory: int) -> bool:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
        return False
    return True


def write_new(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Make a file that is whole or not there, whatever ends this process meanwhile: it is written under a name beside it first.

    Raises:
        FileExistsError: there is one already; it stays as it is.
        OSError: it cannot be written. Nothing of it is left.
    """
    draft = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, mode), "wb") as file:
            file.write(content)
        _name_new(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def is_draft(name: str) -> bool:
    """Is it the name of a file that is being written, or that a process has left behind which was killed?"""
    return name.startswith(".") and name.endswith(".part")


def _name_new(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        path.touch(exist_ok=False)
        draft.replace(path)


def without_modes(file: int) -> str:
    """Say that others have rights at an opened file that was made for its owner alone; empty: they have none."""
    mode = stat.S_IMODE(os.fstat(file).st_mode)
    return (
        f"its file system keeps no modes: a file made for its owner alone has {mode:04o}"
        if mode & 0o077
        else ""
    )


def lacking(directory: Path) -> Iterator[str]:
    """Try it in a directory, where nothing is left behind. Gives what its file system lacks, in words.

    Raises:
        OSError: no file can be made there, or another failure.
    """
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".recovery-try-") as file:
        if lacks := without_modes(file.fileno()):
            yield lacks
        name = Path(f"{file.name}-linked")
        try:
            os.link(file.name, name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            yield WITHOUT_LINKS
        else:
            name.unlink()
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _syncs_names(opened):
            yield WITHOUT_SYNC
    finally:
        os.close(opened)


def kind_of(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of the mount that a path is on; the last one of the longest prefix counts. Empty: not known."""
    try:
        lines = os.fsdecode(mounts.read_bytes()).split("\n")
    except OSError:
        return ""
    whole, best, kind = path.resolve(), "", ""
    for _, named, its_kind, *_ in (line.split(" ") for line in lines if line):
        place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), named)
        if whole.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, its_kind
    return kind


def why_no_store(path: Path) -> str:
    """Why SQLite's write-ahead log must not lie there, by the kind of its file system; empty: it may.

    Its index is shared memory of one host (sqlite.org/wal.html), and a server or a FUSE program keeps neither that nor the kernel's locks.
    """
    kind = kind_of(path)
    is_remote = kind in ("nfs", "nfs4", "cifs", "smb3", "afs")
    if not is_remote and not (kind.startswith("fuse") and kind not in _LOCAL_FUSE):
        return ""
    return f"is on a file system of the kind {kind}, where SQLite's shared memory and the kernel's locks do not hold"


def words_of(error: OSError, place: Path) -> str:
    """What the system says of a failure, and what that means: where no space is left for a name, bytes may be free.

    Args:
        error: as it came.
        place: a file or directory of that file system, which need not be there.
    """
    said = error.strerror or str(error) or type(error).__name__
    left = inodes(place) if error.errno == errno.ENOSPC else None
    if error.errno in _MEANINGS:
        return f"{said}: {_MEANINGS[error.errno]}"
    return (
        said if left is None or left[1] else f"{said}: all of its {left[0]:,} inodes are in use, remove files"
    )


def inodes(place: Path) -> tuple[int, int] | None:
    """How many files its file system can have, and for how many more there is space; None: it has no such limit, or does not say."""
    for there in (place, *place.parents):
        with contextlib.suppress(OSError):
            facts = os.statvfs(there)
            return (facts.f_files, facts.f_favail) if facts.f_files else None
    return None
