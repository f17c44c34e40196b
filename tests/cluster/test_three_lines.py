"""The page on how much to change: its script trains as it stands, and with its three lines a death changes no bit."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

from recovery.core.records import EventKind
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.needs import needs_package
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/howto/three_levels.md"
_SLOW = '            __import__("time").sleep(0.02)\n'
SLOWLY = {"            optimizer.step()\n": f"            optimizer.step()\n{_SLOW}"}


def _block(language: str) -> str:
    found = re.search(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def unchanged() -> str:
    text = _block("python")
    for line, slow in SLOWLY.items():
        assert line in text
        text = text.replace(line, slow)
    return text


def changed() -> str:
    """The same with the page's lines."""
    text, added = unchanged(), 0
    for removed, put in re.findall(r"((?:^-.*\n)*)((?:^\+.*\n)+)", _block("diff"), re.MULTILINE):
        old, new = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE) for lines in (removed, put))
        assert old in text
        text, added = text.replace(old, new, 1), added + new.count("\n")
    assert added == 3
    # The body of two loops is that of one.
    return text


_PAUSE = re.compile(r'^( +)__import__\("time"\)\.sleep\([\d.]+\)\n', re.MULTILINE)
_EVERY = re.compile(r"(?:save_every=|EverySteps\()(\d+)")
_HELD = """session = __import__("recovery").current_session()
while __import__("pathlib").Path(f"held_{session.step}").exists():
    session.check()
    __import__("time").sleep(0.02)
"""


def held(directory: Path, script: str, deaths: int) -> str:
    """Each second save, and a step behind it, the job waits until its process was killed."""
    [every], [pause] = _EVERY.findall(script), _PAUSE.finditer(script)
    for number in range(deaths):
        (directory / f"held_{int(every) * (2 + 2 * number) + 1}").touch()
    return script[: pause.end()] + textwrap.indent(_HELD, pause[1]) + script[pause.end() :]


def trained(
    directory: Path, script: str, *killed: str, **settings: str
) -> tuple[LaunchedCluster, dict[str, torch.Tensor]]:
    directory.mkdir()
    (directory / "page.py").write_text(held(directory, script, len(killed)) if killed else script)
    environment = {"MS_STEP_LOG": str(directory / "steps.jsonl"), **settings}
    with LaunchedCluster(directory, imports=TORCH, environment=environment) as cluster:
        cluster.start(script="page.py")
        for number, node in enumerate(killed):
            cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2 + 2 * number)
            cluster.kill_node(node)
            min(directory.glob("held_*")).unlink()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        return cluster, torch.load(directory / "model.pt")


def test_a_job_says_at_its_start_how_often_it_saves_where_the_script_does_not(tmp_path: Path) -> None:
    script = changed()
    assert script.count(", save_every=20") == 1
    cluster, _ = trained(tmp_path / "job", script.replace(", save_every=20", ""))
    said = "event=saves_planned the state is saved every 100 steps, the newest 5 stay, in "
    assert cluster.log(LAUNCHER).count(said) == 1, "by one rank, for all"


def test_the_script_trains_as_it_stands(tmp_path: Path) -> None:
    _, weights = trained(tmp_path / "plain", unchanged())
    assert set(weights) == {"weight", "bias"}


SCHEDULED = {
    '    rt.join("gloo")\n': '    session = rt.join("gloo")\n',
    "    data = TensorDataset": "    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)\n    data = TensorDataset",
    "save_every=20": "save_every=20, lr_scheduler=schedule",
    "            optimizer.step()\n": "            optimizer.step()\n            if session.step_in_epoch + 1 == len(loader):\n                schedule.step()\n",
}


def test_a_schedule_of_the_pages_form_goes_on_behind_a_death(tmp_path: Path) -> None:
    script = changed()
    for old, new in SCHEDULED.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    _, expected = trained(tmp_path / "undisturbed", script)
    _, found = trained(tmp_path / "disturbed", script, "1", "0")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    _, plain = trained(tmp_path / "plain", changed())
    assert not torch.equal(plain["weight"], expected["weight"]), "the schedule has an effect"


def test_with_three_lines_a_death_of_either_rank_changes_no_bit(tmp_path: Path) -> None:
    _, expected = trained(tmp_path / "undisturbed", changed())
    cluster, found = trained(tmp_path / "disturbed", changed(), "0", "1")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    check_lost_steps(tmp_path / "disturbed")
    assert re.search(r"; 2 recoveries, \d+ steps? done again$", cluster.log(LAUNCHER), re.MULTILINE)


STATEFUL = {
    "import torch\n": "import torch\nfrom torchdata.stateful_dataloader import StatefulDataLoader\n",
    "DataLoader(data, batch_size=32, sampler=sampler)": "StatefulDataLoader(data, batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)",
    "save_every=20": "save_every=8",
}


def test_torchdatas_loader_goes_on_in_a_pass_and_at_its_end_with_workers_that_stay(tmp_path: Path) -> None:
    needs_package("torchdata.stateful_dataloader")
    script = changed()
    for old, new in STATEFUL.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    _, expected = trained(tmp_path / "undisturbed", script)
    # Behind step 16, which is in a pass, and behind step 32, which is the last of one.
    _, found = trained(tmp_path / "disturbed", script, "1", "0")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def check_lost_steps(directory: Path) -> None:
    """A survivor starts its script again: what it had done is told all the same. The other rank may have been a step ahead or behind."""
    lines = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    reached: dict[int, int] = {}
    for line in lines:
        reached[line["generation"]] = max(line["step"], reached.get(line["generation"], 0))
    timeline, _ = read_timeline(read_stored(directory / "recovery"))
    begun = {generation: step for _, generation, step in timeline.plans}
    for one in timeline.recoveries:
        assert one.lost_steps_known
        assert abs(one.lost_steps - (reached[one.generation] - begun[one.generation + 1])) <= 1
