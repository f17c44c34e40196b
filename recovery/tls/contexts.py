"""TLS contexts of loaded material. A context is never changed: new material makes a new one.

OpenSSL loads certificates and revocation lists from files only. What it is given are files without a name in memory,
so that no key and no copy of a list ever lies on a disk.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable
from contextvars import ContextVar

from typing_extensions import override

from recovery.errors import ChannelFileError
from recovery.tls.material import Material
from recovery.tls.revocation import pem_of
from recovery.tls.side import Side

_SECURITY_LEVEL = 2
"""112 bits: RSA from 2,048 on. The system's own default may be lower."""


def context_of(material: Material) -> ssl.SSLContext:
    """Make the context of one side: both must present a certificate, TLS 1.2 or newer, no session is taken up again.

    A session that is taken up again would skip the check of the certificate, and so let a revoked peer in.

    Raises:
        ChannelFileError: OpenSSL does not take the certificate or the key of this side.
    """
    server = material.side is Side.SERVER
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = not server
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_SINGLE_ECDH_USE | ssl.OP_CIPHER_SERVER_PREFERENCE
    if server:
        context.num_tickets = 0
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_ciphers(":".join((*material.files.ciphers, f"@SECLEVEL={_SECURITY_LEVEL}")))
    context.load_verify_locations(cadata=material.trusted_pem())
    if material.lists:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        _through_memory(
            pem_of(material.lists).encode("ascii"), lambda name: context.load_verify_locations(cafile=name)
        )
    try:
        _through_memory(material.own.key_and_chain_pem(), context.load_cert_chain)
    except ssl.SSLError as error:
        raise ChannelFileError(
            "P12_FORMAT",
            file=material.own.file,
            field=f"{material.side.value}_cert_path",
            reason=f"OpenSSL does not take what is in it ({error.reason or error})",
            next_step="Make key and certificate again.",
        ) from error
    return context


def _through_memory(data: bytes, load: Callable[[str], None]) -> None:
    """Give `load` the name of a file that lies in memory and that no other process can open after this one ends."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        load(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


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
    """A context whose failed handshakes send their alert, so that a peer that is refused knows why.

    asyncio closes the socket before it has sent what TLS has to say of a failed handshake.
    """

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
