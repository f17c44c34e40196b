"""`recovery certs`: what it makes works together, a revoked one is refused, and no secret lies open."""

from __future__ import annotations

import datetime
import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509

from recovery.core.ids import NodeId
from recovery.errors import ChannelFileError, SecureChannelError, UsageError
from recovery.tls import bundle, checked_files, config_file, issue, issued_certificates, material
from recovery.tls.contexts import context_of
from recovery.tls.identity import Identity, identity_of
from recovery.tls.side import Side
from tests.tls.test_contexts import shake

NOW = datetime.datetime.now(datetime.timezone.utc)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "certs"
    issue.create(made, nodes=["w0", "w1"], hosts=["127.0.0.1", "localhost"], days=30, now=NOW)
    return made


def password_of(place: Path) -> bytes:
    return checked_files.read_password(place / issue.PASSWORD, "password")


def loaded(place: Path, side: Side) -> material.Material:
    return material.load(config_file.read_config_file(place / issue.CONFIG), side, password_of(place), NOW)


def recovery(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recovery", *words], capture_output=True, text=True, check=False, timeout=300
    )


def test_what_is_made_works_together(place: Path) -> None:
    contexts = [context_of(loaded(place, side)) for side in (Side.SERVER, Side.CLIENT)]

    assert shake(contexts[0], contexts[1]) == ("ok", "ok")


def test_a_node_is_bound_to_its_id_and_the_scheduler_to_its_role(place: Path) -> None:
    own = bundle.read_bundle(place / "nodes" / "w0.p12", password_of(place), field="x", argument="x")

    assert identity_of(own.certificate) == Identity("worker", NodeId("w0"))
    assert loaded(place, Side.SERVER).identity == Identity("scheduler", NodeId(""))
    assert loaded(place, Side.CLIENT).identity is None


def test_only_what_every_host_needs_is_readable_by_others(place: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.rglob("*") if path.is_file()}

    secret = {name: mode for name, mode in modes.items() if not name.endswith((".crt", ".pem", ".json"))}
    assert set(secret) == {"password", "ca.key", "server.p12", "client.p12", "w0.p12", "w1.p12"}
    assert set(secret.values()) == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert b"ENCRYPTED PRIVATE KEY" in (place / issue.CA_KEY).read_bytes()


def test_a_revoked_name_is_refused_and_shown(place: Path) -> None:
    server, client = loaded(place, Side.SERVER), loaded(place, Side.CLIENT)
    assert [one.serial_number for one in issue.Authority(place, NOW).revoke("client")] == [
        client.own.certificate.serial_number
    ]
    after = loaded(place, Side.SERVER)

    assert server.why_no_longer(client.own.certificate, NOW) == ""
    assert "was revoked on" in after.why_no_longer(client.own.certificate, NOW)
    assert shake(context_of(after), context_of(client))[0] == "certificate revoked"
    with pytest.raises(SecureChannelError, match="TLS_CERT_REVOKED"):
        loaded(place, Side.CLIENT)
    states = {one.name: one.state for one in issued_certificates.list_of(place, NOW)}
    assert states["client"] == "revoked"
    assert states["w0"] == "valid"


def test_each_list_has_a_higher_number_and_names_nobody_twice(place: Path) -> None:
    authority = issue.Authority(place, NOW)
    assert len(authority.revoke("w0")) == 1
    assert authority.revoke("w0") == []
    authority.revoke("w1")
    found = x509.load_pem_x509_crl((place / issue.LIST).read_bytes())

    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 4
    assert len(found) == 2


def test_a_name_that_was_never_issued_is_named_with_those_that_were(place: Path) -> None:
    with pytest.raises(UsageError, match=r"'../w9': .* It knows client, server, w0, w1"):
        issue.Authority(place, NOW).revoke("../w9")


@pytest.mark.parametrize("node", ["../w0", "", "a b", "w0\n", "x" * 65])
def test_what_is_no_node_id_names_no_file(tmp_path: Path, node: str) -> None:
    with pytest.raises(UsageError, match="is no node id"):
        issue.create(tmp_path / "certs", nodes=[node], hosts=[], days=1, now=NOW)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "host",
    [
        "bücher.example",
        "10.0.0.1/24",
        "a b",
        "x" * 254,
        "a..b",
        "-a",
        "10.0.0.256",
        "fe80::1%eth0",
        "a\nb",
        "",
    ],
)
def test_what_is_no_host_leaves_nothing_half_made(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match="is neither an IP address nor a host name"):
        issue.create(tmp_path / "certs", nodes=[], hosts=["localhost", host], days=1, now=NOW)

    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_that_nobody_could_dial_gets_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no host"):
        issue.create(tmp_path / "certs", nodes=[], hosts=[], days=1, now=NOW)


def test_every_host_that_can_be_dialled_is_taken(tmp_path: Path) -> None:
    hosts = ["10.0.0.1", "::1", "node-0.example", "head_node", "*.svc.cluster.local", "xn--bcher-kva.example"]
    issue.create(tmp_path / "certs", nodes=[], hosts=hosts, days=1, now=NOW)


@pytest.mark.parametrize("node", ["server", "client"])
def test_a_name_is_revoked_for_its_one_holder(tmp_path: Path, node: str) -> None:
    with pytest.raises(UsageError, match=f"{node} is the name of the certificate in {node}.p12"):
        issue.create(tmp_path / "certs", nodes=[node], hosts=["127.0.0.1"], days=1, now=NOW)


def test_a_node_that_is_named_twice_has_one_certificate(tmp_path: Path) -> None:
    issue.create(tmp_path / "certs", nodes=["w0", "w0"], hosts=["127.0.0.1"], days=1, now=NOW)
    assert len(issue.Authority(tmp_path / "certs", NOW).revoke("w0")) == 1


def test_who_is_revoked_by_two_at_once_is_revoked(tmp_path: Path) -> None:
    nodes = [f"w{number}" for number in range(8)]
    issue.create(tmp_path / "certs", nodes=nodes, hosts=["127.0.0.1"], days=1, now=NOW)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(issue.Authority(tmp_path / "certs", NOW).revoke, nodes))
    found = x509.load_pem_x509_crl((tmp_path / "certs" / issue.LIST).read_bytes())

    assert len(found) == len(nodes)
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == len(nodes) + 1


def test_nothing_is_overwritten(place: Path) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="nothing is overwritten"):
        issue.create(place, nodes=[], hosts=["127.0.0.1"], days=1, now=NOW)

    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_directory_without_an_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChannelFileError, match="FILE_MISSING"):
        issued_certificates.list_of(tmp_path, NOW)


@pytest.mark.parametrize("file", [issue.LIST, f"{issue.ISSUED}/0.crt"])
@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n"]
)
def test_a_damaged_file_of_an_authority_is_named(place: Path, file: str, data: bytes) -> None:
    (place / file).write_bytes(data)
    for ask in (
        lambda: issued_certificates.list_of(place, NOW),
        lambda: issue.Authority(place, NOW).revoke("w0"),
    ):
        with pytest.raises(UsageError, match=f"{file}: is damaged"):
            ask()


def test_the_command_makes_revokes_and_shows(tmp_path: Path) -> None:
    place = str(tmp_path / "certs")
    made = recovery("certs", "init", place, "--nodes", "w0,w1", "--days", "10")
    taken = recovery("certs", "revoke", place, "w1")
    shown = recovery("certs", "show", place, "--json")

    assert (made.returncode, taken.returncode, shown.returncode) == (0, 0, 0), made.stderr + shown.stderr
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert rows["w1"]["state"] == "revoked"
    assert (rows["w0"]["state"], rows["w0"]["node_id"], rows["w0"]["days_left"]) == ("valid", "w0", 9)
    password = (tmp_path / "certs" / "password").read_text().strip()
    assert all(password not in done.stdout + done.stderr for done in (made, taken, shown))


def test_the_command_says_what_it_lacks(tmp_path: Path) -> None:
    done = recovery("certs", "revoke", str(tmp_path))

    assert done.returncode == 64
    assert "USAGE: NAME" in done.stderr
