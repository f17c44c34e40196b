"""Lets a peer that is refused know why: asyncio closes the socket before it has sent what TLS has to say of a failed handshake."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from contextvars import ContextVar

from typing_extensions import override

send_alert: ContextVar[Callable[[bytes], None] | None] = ContextVar("send_alert", default=None)
"""Where a handshake that is begun in this context writes its alert, past asyncio."""


class _AlertingObject(ssl.SSLObject):
    """One handshake and what follows."""

    outgoing: ssl.MemoryBIO
    send: Callable[[bytes], None] | None

    @override
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.send is not None:
                with contextlib.suppress(OSError):
                    self.send(self.outgoing.read())
            raise


class AlertingContext(ssl.SSLContext):
    """A context whose failed handshakes send their alert."""

    sslobject_class = _AlertingObject

    @override
    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin one, and remember where it writes."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _AlertingObject), "it is made by sslobject_class"
        made.outgoing, made.send = outgoing, send_alert.get()
        return made
