"""What the tests of the wire take from the machine: more time for a first message, and descriptors for a flood."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from recovery.transport import connection_limiter, inspection_client, tls_acceptor

_DESCRIPTORS = 8_192


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first message and a handshake may take half a minute: a test that is about these deadlines sets its own."""
    monkeypatch.setattr(connection_limiter, "FIRST_MESSAGE_S", 30.0)
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", 30.0)
    monkeypatch.setattr(inspection_client, "_TIMEOUT_S", 60.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline of a peer ends before the test does: what gets through gets through beside all of them."""
    monkeypatch.setattr(connection_limiter, "FIRST_MESSAGE_S", 3_600.0)
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", 3_600.0)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many as a flood of 2,000 peers and their other ends take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    assert most >= _DESCRIPTORS // 2, f"this user may open {hard} files; allow {_DESCRIPTORS} (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
