"""A WebSocket's client side (RFC 6455), as much as the protocol page needs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_KEY_OF_THE_RFC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(OSError):  # noqa: N818 - the status says what it is
    """The handshake was answered with another status than 101."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status, self.text = status, text


class Closed(OSError):  # noqa: N818 - an ordinary end as well
    """The connection is over; `code` 0: it was cut off."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with {code}: {reason}")
        self.code, self.reason = code, reason


def request(port: int, text: str) -> tuple[int, str, str]:
    """One HTTP request on a connection of its own; gives status, headers and body."""
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.sendall(text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        answer = b""
        while piece := raw.recv(65_536):
            answer += piece
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), head, body


class WebSocket:
    """One connection."""

    def __init__(self, port: int, path: str, *more_headers: str) -> None:
        key = base64.b64encode(bytes(range(16)))
        self.raw = socket.create_connection(("127.0.0.1", port), 10)
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
            *more_headers,
        ]
        self.raw.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 101:
            self.raw.close()
            raise Refused(status, self._buffer.decode())
        proof = base64.b64encode(hashlib.sha1(key + _KEY_OF_THE_RFC).digest())
        assert proof in head, "another key was answered"

    def send(self, payload: bytes, kind: int = BINARY) -> None:
        """One message in one frame."""
        head = bytes([0x80 | kind])
        if len(payload) < 126:
            head += bytes([0x80 | len(payload)])
        elif len(payload) < 1 << 16:
            head += bytes([0x80 | 126]) + struct.pack(">H", len(payload))
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", len(payload))
        mask = b"\x37\xfa\x21\x3d"
        repeated = mask * (len(payload) // 4 + 1)
        masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated[: len(payload)], "big")
        head, payload = head + mask, masked.to_bytes(len(payload), "big")
        self.raw.sendall(head + payload)

    def receive(self) -> bytes:
        """The next message. TimeoutError: none came meanwhile; what was read of it is kept.

        Raises:
            Closed: there will be none.
        """
        message = b""
        while True:
            kind, is_last, payload = self._frame()
            if kind == CLOSE:
                code = struct.unpack(">H", payload[:2])[0] if payload else 1005
                with contextlib.suppress(OSError):
                    self.send(payload, CLOSE)
                self.raw.close()
                raise Closed(code, payload[2:].decode())
            if kind == PING:
                self.send(payload, PONG)
            elif kind != PONG:
                message += payload
                if is_last:
                    return message

    def close(self) -> None:
        """Send the close frame, with 1000."""
        self.send(struct.pack(">H", 1000), CLOSE)

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, *exception: object) -> None:
        self.raw.close()

    def _frame(self) -> tuple[int, bool, bytes]:
        self._have(2)
        first, second = self._buffer[0], self._buffer[1]
        assert not second & 0x80, "a server's frames are not masked"
        size, start = second & 0x7F, 2
        for marker, form in ((126, ">H"), (127, ">Q")):
            if size == marker:
                start += struct.calcsize(form)
                self._have(start)
                size = struct.unpack_from(form, self._buffer, 2)[0]
                break
        self._have(start + size)
        payload, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        return first & 0x0F, bool(first & 0x80), payload

    def _have(self, count: int) -> None:
        while len(self._buffer) < count:
            self._more()

    def _more(self) -> None:
        try:
            piece = self.raw.recv(65_536)
        except ConnectionError as error:
            raise Closed(0, str(error)) from error
        if not piece:
            raise Closed(0, "cut off")
        self._buffer += piece
