"""New files while a process runs: whatever is wrong with them, what was loaded before stays, and the next look tries again."""

from __future__ import annotations

import datetime
import os
import resource
from pathlib import Path

import pytest

from recovery.tls.channel import Channel
from recovery.tls.side import Side
from tests.tls import made
from tests.tls.made import PASSWORD
from tests.tls.test_contexts import DAY, NOW, World

SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _channel(world: World) -> Channel:
    return Channel(world.places[Side.SERVER].config, Side.SERVER, PASSWORD)


def _of_files(channel: Channel, now: datetime.datetime) -> list[str]:
    return [note.event for note in channel.reload(now) if note.event.startswith("tls_files")]


def test_a_list_of_a_clock_that_is_ahead_is_used_once_its_time_has_come(world: World) -> None:
    place = world.places[Side.SERVER]
    place.lists(world.list_of())
    channel = _channel(world)
    ahead = made.crl(world.root, (world.client,), number=2, begin=NOW + 5 * SECOND, end=NOW + DAY)
    place.put("crl.pem", made.crl_pem(ahead))

    said, again, later = (_of_files(channel, NOW + after * SECOND) for after in (0, 1, 6))

    assert (said, again, later) == (["tls_files_refused"], [], ["tls_files_renewed"])
    assert channel.material.why_no_longer(world.client.certificate, NOW).startswith("TLS_CERT_REVOKED")


def test_without_a_descriptor_the_material_of_before_stays_until_there_is_one(world: World) -> None:
    place = world.places[Side.SERVER]
    channel = _channel(world)
    # Whatever is imported at the first renewal is here then.
    place.lists(world.list_of())
    assert _of_files(channel, NOW) == ["tls_files_renewed"]
    assert _of_files(channel, NOW) == ["tls_files_renewed"], "config.json names another file"
    before = channel.context
    place.put("crl.pem", world.list_of(world.client, number=2))
    place.put("server.p12", b"half", 0o600)
    assert _of_files(channel, NOW) == ["tls_files_refused"]
    place.own(world.server)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)

    events: list[str] = []
    for most in range(free, soft):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            events += _of_files(channel, NOW)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if "tls_files_renewed" in events:
            break
        assert channel.context is before

    assert set(events[:-1]) == {"tls_files_refused"}
    assert len(events) < 8, "said when something else is missing, not at each look"
    assert channel.material.why_no_longer(world.client.certificate, NOW)


def test_relative_names_mean_the_directory_of_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = world.places[Side.SERVER]
    names = {key: Path(place.keys[key]).name for key in ("server_cert_path", "client_cert_path")}
    place.write_config(**names, ca_cert_path="ca.crt")
    monkeypatch.chdir(place.directory)
    channel = Channel(Path("config.json"), Side.SERVER, PASSWORD)
    monkeypatch.chdir("/")
    assert _of_files(channel, NOW) == []
    place.lists(world.list_of(world.client))

    assert _of_files(channel, NOW) == ["tls_files_renewed"]
    assert channel.material.lists
