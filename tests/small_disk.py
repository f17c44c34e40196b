"""File systems of a test's own: of a size that it chooses, read-only, or dead."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import lacks, needs_kernel, needs_root, needs_tool


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs there, as long as this lasts. Needs root.

    Args:
        place: a directory; it is made where it is not there.
        options: of mount, `size=64k` or `nr_inodes=8`.
    """
    needs_root()
    needs_tool("mount")
    place.mkdir(exist_ok=True)
    _mounted("-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=120)


@contextmanager
def read_only(file: Path) -> Iterator[None]:
    """Have a file that can be read, and by nobody be written, as long as this lasts. Needs root."""
    needs_root()
    needs_tool("mount")
    _mounted("--bind", str(file), str(file))
    try:
        _mounted("-o", "remount,bind,ro", str(file))
        yield
    finally:
        subprocess.run(["umount", "-l", str(file)], check=True, timeout=120)


@contextmanager
def dead_mount(place: Path) -> Iterator[None]:
    """Mount what nobody serves, as a network's file system whose server has gone: each call on it fails with ENOTCONN. Needs root.

    Args:
        place: a directory.
    """
    needs_root()
    try:
        served = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        needs_kernel(f"/dev/fuse ({error.strerror})")
        raise
    options = f"fd={served},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.mount(b"dead", os.fsencode(place), b"fuse", 0, options)
    os.close(served)
    if refused:
        needs_kernel(f"FUSE for this user ({os.strerror(ctypes.get_errno())})")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=120)


def _mounted(*words: str) -> None:
    done = subprocess.run(["mount", *words], check=False, capture_output=True, timeout=120)
    if done.returncode != 0:
        lacks(f"the right to mount ({done.stderr.decode().strip()})", "give root CAP_SYS_ADMIN")


@contextmanager
def btrfs_disk(place: Path) -> Iterator[Path]:
    """Mount a new btrfs there, as long as this lasts: stat gives its files another device than the kernel's lists do. Needs root."""
    needs_root()
    there = "btrfs" in Path("/proc/filesystems").read_text() and shutil.which("mkfs.btrfs") is not None
    needs_kernel("btrfs, or this machine mkfs.btrfs", is_there=there)
    place.mkdir(exist_ok=True)
    image = place.with_name(f"{place.name}.image")
    with image.open("wb") as file:
        file.truncate(200 << 20)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, timeout=120)
    subprocess.run(["mount", "-o", "loop", image, place], check=True, timeout=120)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True, timeout=120)
