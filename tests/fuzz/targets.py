"""What is fed with arbitrary bytes: everything that reads what comes from the network, or from a file that somebody else may have written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives import serialization

from recovery.checkpoint import manifest as manifests
from recovery.config import rank_table
from recovery.core.ids import ConnectionId
from recovery.core.rules import Rules
from recovery.errors import (
    CheckpointManifestError,
    ProtocolError,
    RecoveryError,
    RecoveryPathError,
    SecureChannelError,
    SettingError,
)
from recovery.launch.msrun import binding_file
from recovery.store import job_token_file
from recovery.tls import config_file, material
from recovery.tls.side import Side
from recovery.transport import codec
from recovery.transport.job_token import Authenticator, Denied, JobToken, is_foreign
from tests.core.desk import Desk, Worker, begin
from tests.golden.messages import examples
from tests.tls import made
from tests.tls.made import NOW, PASSWORD, Place

FRAME_BYTES_MAX = 1 << 20
_LENGTH_BYTES = 2
_SECRET = "a-token-that-nobody-guesses"

Take = Callable[[bytes], None]


class Target(NamedTuple):
    """Something that reads bytes."""

    name: str
    seeds: Callable[[], list[bytes]]
    """Right ones, to begin from."""
    refuses_by: type[RecoveryError] | None
    """The only error that is allowed; None: none is."""
    make: Callable[[Path], Take]
    """Gives what takes the bytes; it may use this directory."""

    def taker(self, directory: Path) -> Take:
        """Give what takes the bytes, and raises only what must not be."""
        take, allowed = self.make(directory), self.refuses_by

        def one(data: bytes) -> None:
            try:
                take(data)
            except RecoveryError as error:
                if allowed is None or not isinstance(error, allowed):
                    raise
                text = str(error)
                assert text.isprintable(), f"control characters reach a log: {text!r}"
                assert PASSWORD.decode() not in text, "a password is shown"

        return one


# --- the wire -----------------------------------------------------------------------------------------------------------


def _frames(sender: str) -> list[bytes]:
    return [bytes.fromhex(row["frame"]) for row in examples() if row["sender"] == sender]


def _node_frame(_: Path) -> Take:
    def take(data: bytes) -> None:
        message = codec.decode_from_node(data, frame_bytes_max=FRAME_BYTES_MAX)
        assert codec.decode_from_node(codec.encode(message), frame_bytes_max=FRAME_BYTES_MAX) == message

    return take


def _scheduler_frame(_: Path) -> Take:
    def take(data: bytes) -> None:
        message = codec.decode_from_scheduler(data, peer="the scheduler")
        assert codec.decode_from_scheduler(codec.encode(message), peer="the scheduler") == message

    return take


def _conversation(frames: Sequence[bytes]) -> bytes:
    return b"".join(
        bytes([number % 4]) + len(frame).to_bytes(_LENGTH_BYTES, "big") + frame
        for number, frame in enumerate(frames)
    )


def _conversations() -> list[bytes]:
    frames = _frames("node")
    return [_conversation(frames), _conversation(frames[::-1]), *(_conversation([one]) for one in frames)]


def _said(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) > _LENGTH_BYTES:
        size = int.from_bytes(data[1 : 1 + _LENGTH_BYTES], "big")
        start = 1 + _LENGTH_BYTES
        yield data[0], data[start : start + size]
        data = data[start + size :]


def _machine(_: Path) -> Take:
    """Two connections of a running job's workers and two of strangers speak; whatever they say, the machine keeps its invariants."""

    def take(data: bytes) -> None:
        desk = Desk(Rules(worker_count=2, standby_count=1))
        workers = [Worker(desk, "worker_0"), Worker(desk, "worker_1")]
        begin(workers)
        connections = [workers[0].connection, workers[1].connection, desk.connect(), desk.connect()]
        for speaker, frame in _said(data):
            place = speaker % len(connections)
            try:
                message = codec.decode_from_node(frame, frame_bytes_max=FRAME_BYTES_MAX)
            except ProtocolError:
                _end(desk, connections, place)
                continue
            desk.say(connections[place], message)
            if connections[place] in desk.closed:
                _end(desk, connections, place)
            desk.at(desk.now + speaker)

    return take


def _end(desk: Desk, connections: list[ConnectionId], place: int) -> None:
    desk.lose(connections[place])
    connections[place] = desk.connect()


def _headers(_: Path) -> Take:
    scheduler = Authenticator(JobToken(_SECRET))

    def take(data: bytes) -> None:
        # As the server's parser gives them: bytes that are no UTF-8 come as lone surrogates.
        who, _, rest = data.decode(errors="surrogateescape").partition("\n")
        authorization, _, host = rest.partition("\n")
        looked = scheduler.look_at({"Recovery-As": who, "Authorization": authorization}, "GET", "/cluster")
        assert isinstance(looked, Denied), "who does not know the token is let in"
        is_foreign(host, frozenset({"node-0"}))

    return take


def _header_seeds() -> list[bytes]:
    scheduler = Authenticator(JobToken(_SECRET))
    challenge = scheduler.challenge()
    return [
        f"{who}\nRecovery-Token {challenge} {'ab' * 16} {'cd' * 32}\n127.0.0.1:80".encode()
        for who in ("node worker_0", "launcher node-0", "viewer", "node worker_0 x")
    ]


# --- files --------------------------------------------------------------------------------------------------------------


def _put(path: Path, data: bytes) -> None:
    """Write a new file: some file systems wait for the disk where an old one is emptied."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _config(directory: Path) -> Take:
    path = directory / "config.json"

    def take(data: bytes) -> None:
        _put(path, data)
        config_file.read_config_file(path)

    return take


_MATERIAL = ("ca.crt", "server.p12", "crl.pem")


def _material(directory: Path) -> Take:
    """The first byte says which of the three files holds the rest; the other two are right."""
    place = Place(directory)
    right = _material_files()
    place.lists(right["crl.pem"])
    found = config_file.read_config_file(place.config)

    def take(data: bytes) -> None:
        name = _MATERIAL[(data or b"\0")[0] % len(_MATERIAL)]
        place.put(name, data[1:], 0o600)
        try:
            material.load(found, Side.SERVER, PASSWORD, NOW)
        finally:
            place.put(name, right[name], 0o600)

    return take


def _material_files() -> dict[str, bytes]:
    return {
        "ca.crt": made.root().pem(),
        "server.p12": made.p12(made.leaf()),
        "crl.pem": made.crl_pem(made.crl(made.root(), [made.signed("gone", made.root())])),
    }


def _material_seeds() -> list[bytes]:
    files = _material_files()
    der = made.crl(made.root()).public_bytes(serialization.Encoding.DER)
    bare = made.p12(made.leaf(), password=None)
    contents = [*((name, files[name]) for name in _MATERIAL), ("crl.pem", der), ("server.p12", bare)]
    return [bytes([_MATERIAL.index(name)]) + content for name, content in contents]


def _manifest(directory: Path) -> Take:
    """What begins with a blank is put under a good seal: else no change would get behind the seal's check."""
    path = directory / "train-1_1.json"

    def take(data: bytes) -> None:
        _put(path, _sealed(data) if data[:1] == b" " else data)
        manifests.read_manifest(path)

    return take


def _sealed(body: bytes) -> bytes:
    digest = hashlib.sha256(body.strip()).hexdigest().encode()
    return b'{"manifest":' + body.strip() + b',"manifest_sha256":"' + digest + b'"}'


def _token_file(directory: Path) -> Take:
    def take(data: bytes) -> None:
        path = directory / job_token_file.NAME
        _put(path, data)
        path.chmod(0o600)
        found = job_token_file.stored(directory)
        assert found is not None
        assert found.isascii()
        assert found.isprintable()

    return take


def _rank_table(directory: Path) -> Take:
    path = directory / "rank_table.json"

    def take(data: bytes) -> None:
        _put(path, data)
        rank_table.read_rank_table(path, field="--rank_table_file")

    return take


def _bind_file(directory: Path) -> Take:
    path = directory / "bind.json"

    def take(data: bytes) -> None:
        _put(path, data)
        binding_file.read_binding_file(path)

    return take


_PLACE = (
    b'"job":"job","run":1,"rank":0,"world_size":2,"incarnation":1,"generation":1,"step":10,"epoch":1,"step_in_epoch":10,'
    b'"versions":{"torch":"2.13"},"integrated":true,'
)
_FORMAT_1 = (
    b'{"format":1,' + _PLACE + b'"file":"train-1_1.ckpt","digest":"' + b"ab" * 32 + b'","file_bytes":1}'
)
_FORMAT_2 = (
    b'{"format":2,'
    + _PLACE
    + b'"layout":"rank","files":[{"name":"train-1_1.ckpt","role":"state","bytes":1,"sha256":"'
    + b"ab" * 32
    + b'"}],"replicated":""}'
)
_BIND_FILE = (
    b'{"bind_config": {"bind_cpu_mode": "cpu", "bind_memory_mode": "numa"}, "bind_memory": {"device0": 0}, '
    b'"bind_cpu": {"device0": {"main": "0-1", "acl": "2"}, "device1": {"acl": "3"}, "scheduler": null}}'
)
_RANK_TABLE = msgspec.json.encode(
    {
        "version": "1.0",
        "server_count": "1",
        "server_list": [
            {
                "server_id": "10.0.0.1",
                "device": [{"device_id": "0", "device_ip": "10.0.1.1", "rank_id": "0"}],
            }
        ],
        "status": "completed",
    }
)
_CONFIG = (
    b'{"server_cert_path": "server.p12", "client_cert_path": "client.p12", "ca_cert_path": "ca.crt", "crl_path": "", '
    b'"cipher_list": "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-R SA-AES256-GCM-SHA384", '
    b'"cert_expire_warning_time_in_day": 90, "expected_hostname": "localhost"}'
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("node_frame", lambda: _frames("node"), ProtocolError, _node_frame),
        Target("scheduler_frame", lambda: _frames("scheduler"), ProtocolError, _scheduler_frame),
        Target("machine", _conversations, None, _machine),
        Target("headers", _header_seeds, None, _headers),
        Target("config", lambda: [_CONFIG], SecureChannelError, _config),
        Target("material", _material_seeds, SecureChannelError, _material),
        Target(
            "manifest",
            lambda: [_sealed(_FORMAT_2), b" " + _FORMAT_2, b" " + _FORMAT_1],
            CheckpointManifestError,
            _manifest,
        ),
        Target("token_file", lambda: [b"ab" * 32 + b"\n"], RecoveryPathError, _token_file),
        Target("rank_table", lambda: [_RANK_TABLE], SettingError, _rank_table),
        Target("bind_file", lambda: [_BIND_FILE], SettingError, _bind_file),
    )
}
