"""What a launcher and its template process say to each other: one message each way at a time, framed by its length."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Union

import msgspec

_DESCRIPTORS = 2
"""The most that come with one message."""
_LENGTH = struct.Struct("!I")


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Launcher to template, first of all: what to import."""

    modules: tuple[str, ...]
    """That the script names, in this order; one that does not exist is left out, as the process that imports it later sees by itself."""
    besides: tuple[str, ...] = ()
    """And that it needs later."""
    compared: tuple[str, ...] = ()
    """Packages that the script names: where a forked process first imports one, it compares what the template had."""
    refusal: str = ""
    """Why no process may be forked from a template of these; empty: one may."""
    argv: tuple[bytes, ...] = (b"",)
    """`sys.argv` of the script: some packages look at it when they are imported. No path has to be UTF-8."""
    of_one: tuple[str, ...] = ()
    """Variables in which the programs differ: an import that looks for one cannot be shared."""
    programs: bool = False
    """What is begun are worker proxies, whose programs need these imports: each proxy gets a template of its own, to fork them from."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """Template to launcher: it can be forked."""

    module_count: int
    took_ms: int


class Unsafe(msgspec.Struct, frozen=True, kw_only=True, tag="unsafe"):
    """Template to launcher: a forked process would not be what a spawned one is. The template ends."""

    reason: str


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag="fork"):
    """Launcher to template: begin a process. Two descriptors come along: of its log, and of a pipe that gives a byte when it may go on."""

    words: tuple[bytes, ...]
    """The command as it would be spawned: no path has to be UTF-8."""
    environment: dict[bytes, bytes]
    """All of it."""
    noted: str
    """In JSON, which has escapes for such a path: the conditions that it runs under (recovery.process_conditions)."""

    @classmethod
    def of(
        cls, command: Sequence[str], environment: Mapping[str, str], conditions: Mapping[str, Any]
    ) -> Fork:
        """Ask for a process that would be spawned with these."""
        return cls(
            words=tuple(map(os.fsencode, command)),
            environment={os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            noted=json.dumps(conditions),
        )

    @property
    def command(self) -> tuple[str, ...]:
        """As it would be spawned."""
        return tuple(map(os.fsdecode, self.words))

    @property
    def conditions(self) -> dict[str, Any]:
        """That it runs under."""
        noted: dict[str, Any] = json.loads(self.noted)
        return noted


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag="forked"):
    """Template to launcher: the process leads its session and is a child of the launcher."""

    pid: int


class Stale(msgspec.Struct, frozen=True, kw_only=True, tag="stale"):
    """Template to launcher: what it has imported is not what a spawned process would import. Nothing was begun."""

    reason: str
    """What changed."""


class NotForked(msgspec.Struct, frozen=True, kw_only=True, tag="not_forked"):
    """Template to launcher: the system refused. Nothing was begun."""

    errno: int
    """0: it was no call of the system that failed; the process ended before it began."""
    reason: str


Request = Union[Prepare, Fork]
Answer = Union[Prepared, Unsafe, Forked, Stale, NotForked]

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def send(link: socket.socket, message: Request | Answer, descriptors: Sequence[int] = ()) -> None:
    """Send one message, with descriptors that the other side gets copies of.

    Raises:
        OSError: the other side is gone, or does not take it in the link's time.
    """
    body = msgspec.msgpack.encode(message)
    head = _LENGTH.pack(len(body))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    link.sendmsg([head], ancillary)
    link.sendall(body)


def receive_answer(link: socket.socket) -> Answer:
    """Wait for the template's answer.

    Raises:
        EOFError: the template is gone.
        OSError: it does not answer in the link's time, or the link is broken.
    """
    length, _ = _head(link)
    return _answers.decode(_exactly(link, length))


def receive_request(link: socket.socket) -> tuple[Request, list[int]]:
    """Wait for a request; gives it with the descriptors that came along.

    Raises:
        EOFError: the launcher is gone.
    """
    length, descriptors = _head(link)
    return _requests.decode(_exactly(link, length)), descriptors


def _head(link: socket.socket) -> tuple[int, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(link, _LENGTH.size, _DESCRIPTORS)
    if len(head) < _LENGTH.size:
        raise EOFError
    return _LENGTH.unpack(head)[0], descriptors


def _exactly(link: socket.socket, length: int) -> bytes:
    parts: list[Any] = []
    while length:
        part = link.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
