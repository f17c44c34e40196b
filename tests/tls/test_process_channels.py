"""Where a process's channel comes from: variables, password files, arguments of init and set_ps_context; and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery import clock, config
from recovery.config import SecureChannel
from recovery.errors import ChannelSettingError, SecureChannelError, SettingError, UsageError
from recovery.tls import process_channels
from recovery.tls.process_channels import Arguments
from recovery.tls.side import Side
from tests.config.environments import WORKER
from tests.tls.made import PASSWORD
from tests.tls.test_contexts import World


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_channels, "_given", Arguments())


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.places[Side.CLIENT].put("password", PASSWORD + b"\n", 0o600)
    return world


def test_it_is_off_by_default() -> None:
    settings = config.load(WORKER)

    assert settings.secure_channel == SecureChannel()
    assert settings.warnings == ()
    assert process_channels.channel_of(settings.secure_channel, Side.CLIENT) is None


def test_the_variables_name_everything(world: World) -> None:
    place = world.places[Side.CLIENT]
    settings = config.load(
        {
            **WORKER,
            "MS_ENABLE_SSL": "1",
            "MS_CONFIG_FILE_PATH": str(place.config),
            "MS_CLIENT_PASSWORD_FILE": str(place.directory / "password"),
        }
    )
    channel = process_channels.channel_of(settings.secure_channel, Side.CLIENT)

    assert channel is not None
    assert PASSWORD.decode() not in repr(channel) + repr(settings)


def test_new_files_may_come_with_a_new_password(world: World) -> None:
    place = world.places[Side.CLIENT]
    settings = SecureChannel(
        enabled=True, config_file=place.config, client_password_file=place.directory / "password"
    )
    channel = process_channels.channel_of(settings, Side.CLIENT)
    assert channel is not None
    before = channel.context
    channel.reload(clock.utc_now())

    place.own(world.client, password=b"another password")
    events = [note.event for note in channel.reload(clock.utc_now())]
    assert events == ["tls_files_refused"], "the password's file is not there yet"
    assert channel.context is before
    place.put("password", b"another password\n", 0o600)
    assert channel.reload(clock.utc_now())[0].event == "tls_files_renewed"
    place.put("password", b"another password\n", 0o644)
    assert "FILE_PERM" in channel.reload(clock.utc_now())[0].text
    assert channel.context is not before


def test_the_script_gives_the_same_and_wins(world: World) -> None:
    process_channels.give(enable_ssl=True, config_file_path=str(world.places[Side.CLIENT].config))
    process_channels.give(client_password=PASSWORD.decode())

    assert process_channels.channel_of(SecureChannel(), Side.CLIENT) is not None
    assert PASSWORD.decode() not in repr(process_channels._given)
    process_channels.give(enable_ssl=False)
    assert process_channels.channel_of(SecureChannel(enabled=True), Side.CLIENT) is None


def test_files_without_the_switch_are_said_to_have_no_effect() -> None:
    settings = config.load({**WORKER, "MS_CONFIG_FILE_PATH": "/c/config.json"})

    assert len(settings.warnings) == 1
    assert settings.warnings[0].startswith("CONFIG_TLS_IGNORED: MS_CONFIG_FILE_PATH has no effect")


def test_the_switch_without_a_file_is_refused() -> None:
    with pytest.raises(ChannelSettingError, match=r"CONFIG_TLS_INCOMPLETE: .*recovery certs init DIR"):
        process_channels.channel_of(SecureChannel(enabled=True), Side.CLIENT)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_a_password_file_that_others_can_read_is_refused(world: World, mode: int) -> None:
    place = world.places[Side.CLIENT]
    path = place.directory / "password"
    path.chmod(mode)
    settings = SecureChannel(enabled=True, config_file=place.config, client_password_file=path)
    with pytest.raises(
        SecureChannelError, match=r"FILE_PERM: .*password \(MS_CLIENT_PASSWORD_FILE\) has mode"
    ):
        process_channels.channel_of(settings, Side.CLIENT)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enable_ssl": 1}, "enable_ssl='1'"),
        ({"enable_ssl": "True"}, "must be True or False"),
        ({"config_file_path": 7}, "config_file_path='7': must be the path of config.json"),
        ({"client_password": b"canary"}, "client_password='(not shown)'"),
        ({"server_password": 12_345}, "server_password='(not shown)'"),
        ({"server_password": "canary" * 500}, "text of at most 1023 bytes"),
    ],
)
def test_an_argument_of_another_type_is_refused_and_no_password_is_shown(
    given: dict[str, object], says: str
) -> None:
    with pytest.raises(SettingError, match="SETTING_TYPE") as caught:
        process_channels.give(**given)

    assert says in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "12345" not in str(caught.value)


def test_a_process_without_tls_loads_no_cryptography() -> None:
    code = "import sys, recovery.worker.service, recovery.scheduler.service, recovery.cli.status; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_what_comes_after_joining_is_refused() -> None:
    code = (
        "import recovery; from recovery.training import secure_channel; recovery.set_ps_context(enable_ssl=True); "
        "secure_channel.note_joined(); recovery.set_ps_context(enable_ssl=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "USAGE: recovery.set_ps_context(): came after the process had joined its job" in done.stderr


def test_who_says_nothing_is_never_too_late() -> None:
    """`init()` without arguments, in a process whose `@run` is over or whose first `init()` has failed."""
    program = "from recovery.training import secure_channel; secure_channel.note_joined(); secure_channel.set_ps_context()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_scheduler_that_a_process_starts_learns_what_the_script_has_said() -> None:
    assert process_channels.variables_of(SecureChannel()) == {}
    assert process_channels.variables_of(SecureChannel(enabled=True)) == {"MS_ENABLE_SSL": "1"}
    process_channels.give(enable_ssl=True, config_file_path="/c/config.json", client_password="x")
    assert process_channels.variables_of(SecureChannel()) == {
        "MS_ENABLE_SSL": "1",
        "MS_CONFIG_FILE_PATH": "/c/config.json",
    }
    process_channels.give(enable_ssl=False)
    assert process_channels.variables_of(SecureChannel(enabled=True)) == {"MS_ENABLE_SSL": "0"}


def test_a_password_that_only_the_script_knows_reaches_no_other_process() -> None:
    process_channels.give(enable_ssl=True, config_file_path="/c/config.json", server_password="a canary")
    with pytest.raises(UsageError, match="MS_SERVER_PASSWORD_FILE") as caught:
        process_channels.variables_of(SecureChannel())
    assert "canary" not in str(caught.value)
    by_file = SecureChannel(server_password_file=Path("/c/password"))
    assert "canary" not in str(process_channels.variables_of(by_file))


def test_a_framework_is_given_the_same_for_connections_of_its_own(world: World) -> None:
    place = world.places[Side.CLIENT]
    password = place.directory / "password"
    by_files = SecureChannel(
        enabled=True, config_file=place.config, client_password_file=password, server_password_file=password
    )
    assert process_channels.arguments_of(by_files) == {
        "enable_ssl": True,
        "config_file_path": str(place.config),
        "client_password": PASSWORD.decode(),
        "server_password": PASSWORD.decode(),
    }
    one_missing = SecureChannel(enabled=True, config_file=place.config, client_password_file=password)
    assert process_channels.arguments_of(one_missing)["server_password"] is None
    with pytest.raises(ChannelSettingError, match="CONFIG_TLS_INCOMPLETE"):
        process_channels.arguments_of(SecureChannel(enabled=True))
