"""TLS from a Secret: the files of `recovery certs init` are taken where the pods find them, by the scheduler and by those who dial it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery import config
from recovery.cli.main import load
from recovery.errors import ChannelFileError
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from tests.kubernetes.rendered import objects_of, pod_of, pods_of, run

TEXT = run(
    "--name=resnet", "--image=a", "--tls-secret=resnet-tls", "--servers=1", "--spares=1", "--storage=shared"
).text


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What `kubectl create secret` is given."""
    folder = tmp_path / "certs"
    load("certs").main(["init", str(folder), "--hosts=resnet-scheduler"], standalone_mode=False)
    return folder


def mounted(folder: Path, secret: Path) -> Iterator[tuple[str, Path]]:
    """Put the files of a pod's mounts into a folder, as a kubelet does: each by itself."""
    folder.mkdir()
    [config_map] = [one for one in objects_of(TEXT) if one["kind"] == "ConfigMap"]
    for mount in pod_of(TEXT, "host")["spec"]["containers"][0]["volumeMounts"]:
        if mount["name"] in ("tls", "tls-config"):
            place = folder / Path(mount["mountPath"]).name
            if mount["name"] == "tls":
                shutil.copy(secret / mount["subPath"], place)
                place.chmod(0o400)
            else:
                place.write_text(config_map["data"][mount["subPath"]].replace("/tls/", f"{folder}/"))
            yield mount["mountPath"], place


def test_the_scheduler_and_who_dials_it_take_the_files(tmp_path: Path, secret: Path) -> None:
    places = dict(mounted(tmp_path / "tls", secret))
    variables = {
        one["name"]: one.get("value", "") for one in pod_of(TEXT, "host")["spec"]["containers"][0]["env"]
    }
    named = {
        name: variables[name]
        for name in ("MS_CONFIG_FILE_PATH", "MS_CLIENT_PASSWORD_FILE", "MS_SERVER_PASSWORD_FILE")
    }
    assert set(named.values()) <= set(places)

    here = {name: str(places[path]) for name, path in named.items()}
    channel = config.secure_channel({"MS_ENABLE_SSL": variables["MS_ENABLE_SSL"], **here})

    for side in Side:
        assert channel_of(channel, side) is not None


def test_a_file_of_the_secret_that_others_can_read_would_be_refused(tmp_path: Path, secret: Path) -> None:
    places = dict(mounted(tmp_path / "tls", secret))
    places["/tls/password"].chmod(0o440)

    channel = config.secure_channel(
        {
            "MS_ENABLE_SSL": "1",
            "MS_CONFIG_FILE_PATH": str(places["/tls/config.json"]),
            "MS_CLIENT_PASSWORD_FILE": str(places["/tls/password"]),
        }
    )
    with pytest.raises(ChannelFileError, match="FILE_PERM"):
        channel_of(channel, Side.CLIENT)


def test_every_pod_has_them_and_none_is_a_link() -> None:
    for pod in pods_of(TEXT):
        [container], [volume] = (
            pod["spec"]["containers"],
            [one for one in pod["spec"]["volumes"] if one["name"] == "tls"],
        )
        assert volume["secret"] == {"secretName": "resnet-tls", "defaultMode": 0o400}
        tls = [one for one in container["volumeMounts"] if one["name"].startswith("tls")]
        assert len(tls) == 6
        assert all(one["mountPath"] == f"/tls/{one['subPath']}" for one in tls)
