"""A script is run again in its process behind each death, whatever form it has: both ranks are killed once, and the bits are those of no death."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.script_forms import FORMS, Form
from tests.needs import needs_package
from tests.warm.process import TORCH

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def trained(directory: Path, form: Form, *, kills: bool) -> LaunchedCluster:
    """Write the form's files, and train to the end."""
    package = directory / form.module.partition(".")[0] if form.module else directory
    package.mkdir(parents=True)
    for name, text in form.beside:
        file = package / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    script = package / (f"{form.module.rpartition('.')[2]}.py" if form.module else "form.py")
    script.write_text(form.text())
    if kills:
        (directory / "kills").touch()
    words = ("python", "-m") if form.module else ()
    with LaunchedCluster(
        directory, imports=TORCH, environment={"OMP_NUM_THREADS": "1", **dict(form.environment)}
    ) as cluster:
        cluster.start(*words, script=form.module or "form.py", arguments=form.flags)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        return cluster


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    directory = tmp_path_factory.mktemp("plain") / "job"
    trained(directory, FORMS["plain"], kills=False)
    weights: dict[str, torch.Tensor] = torch.load(directory / "model.pt")
    return weights


@pytest.mark.parametrize("name", FORMS)
def test_both_ranks_die_once(tmp_path: Path, expected: dict[str, torch.Tensor], name: str) -> None:
    form = FORMS[name]
    if name == "tqdm":
        needs_package("tqdm")
    if form.own_bits:
        trained(tmp_path / "undisturbed", form, kills=False)
        expected = torch.load(tmp_path / "undisturbed/model.pt")
    cluster = trained(tmp_path / "job", form, kills=True)
    assert sorted(path.name for path in (tmp_path / "job").glob("dead_*")) == ["dead_0", "dead_1"]
    found = torch.load(tmp_path / "job/model.pt")
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    said = cluster.log(LAUNCHER)
    reasons = re.findall(r"event=process_replaced reason=(.*)", said)
    if form.replaced:
        assert reasons
        assert any(re.search(form.replaced, reason) for reason in reasons), reasons
    else:
        assert reasons == [], said
