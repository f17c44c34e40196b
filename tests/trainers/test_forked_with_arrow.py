"""What comes with Hugging Face's datasets begins a thread of its own where it is imported, unless a template says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("datasets.iterable_dataset")

from recovery.launch.forkserver.fork_messages import Prepare
from tests.launch.forking import forked, ready_template

pytestmark = [pytest.mark.trainers]

_SCRIPT = """
import os, datasets
rows = datasets.Dataset.from_dict({"id": list(range(1000))})
print(sum(rows["id"]), os.environ.get("JE_ARROW_MALLOC_CONF"))
"""


def test_a_script_with_datasets_is_forked_and_finds_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    variables = {name: value for name, value in os.environ.items() if name != "JE_ARROW_MALLOC_CONF"}
    with ready_template(Prepare(modules=("datasets",)), variables) as template:
        assert forked(template, tmp_path, "train.py", environment=variables) == (0, "499500 None\n")
