"""Files, modules, tests, settings and words of code that documents and comments name. `python -m tests.house.names_mentioned` lists those that are not there."""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from recovery.config.table import BY_NAME, SETTINGS
from tests.house.files import ROOT, definitions, name_of, parsed, python_files, tracked_files

OF_USERS = frozenset({"train.py", "script.py", "net.py", "my_train.py", "my_job.py", "another.py"})
"""Files that a user would have."""
OF_OTHERS = frozenset(
    {
        "MS_RESUME_TOKEN",
        "MS_SIMULATION_LEVEL",
        "parameter_broadcast",
        "parallel/cluster/process_entity/_bind.py",
    }
)
"""A variable of ours that no user sets, and names of MindSpore."""

FROM_MINDSPORE = ("docs/howto/from_mindspore.md", "docs/zh/howto/from_mindspore.md")
"""Pages that go through what MindSpore's documents name."""
OF_ITS_DOCUMENTS = frozenset(
    {
        "./train.py",
        "AUTO_PARALLEL",
        "GLOG_v",
        "GRAPH_OP_RUN",
        "HCCL_WHITELIST_DISABLE",
        "HYBRID_PARALLEL",
        "NCCL_SOCKET_IFNAME",
        "SEMI_AUTO_PARALLEL",
        "STAND_ALONE",
        "WORKER_NUM",
        "btl_tcp_if_include",
        "create_group",
        "device_num",
        "enable_parallel_optimizer",
        "full_batch",
        "get_local_rank",
        "get_local_size",
        "global_rank",
        "layerwise_parallel",
        "load_distributed_checkpoint",
        "mpirun_gpu_cluster.sh",
        "nccl_allgather.py",
        "parameter_broadcast",
        "pipeline_stages",
        "recovery.dat",
        "reset_auto_parallel_context",
        "resnet.py",
        "resnet50_distributed_training_gpu_recovery.py",
        "run_cluster.sh",
        "run_gpu_cluster_recovery.sh",
        "strategy_ckpt_load_file",
    }
)
"""What these pages may name beside what is here."""

PLACES = frozenset({"LOG_DIR"})
"""What stands in a command of a document where a user writes something."""

_FILE = re.compile(r"(?<![\w/<{*.$-])((?:[\w.-]+/)*[\w-]+\.(?:py|sh))(?:::(\w+))?(?![\w*{-])")
_MODULE = re.compile(r"(?<![\w./-])recovery(?:\.[A-Za-z_]\w*)+")
_VARIABLE = re.compile(r"(?<![A-Z_])MS_[A-Z][A-Z_]*[A-Z](?![A-Z_*])")
_CODE = re.compile(r"`([A-Za-z]+(?:_[A-Za-z]+)+)`|(?<![\w$])([A-Z]{2,}(?:_[A-Z]{2,})+)(?!\w)|event=(\w+)")


class Missing(NamedTuple):
    """A name of nothing."""

    file: str
    line: int
    name: str


def missing() -> Iterator[Missing]:
    """Every one, in the order of the files."""
    for path in tracked_files():
        for line, text in said_in(path):
            for name in names_of_nothing(text, path):
                if name not in OF_ITS_DOCUMENTS or name_of(path) not in FROM_MINDSPORE:
                    yield Missing(name_of(path), line, name)


def said_in(path: Path) -> Iterator[tuple[int, str]]:
    """What a file says to people, line by line: all of a document; comments and strings of a program."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    elif path.suffix == ".py":
        source = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT or (
                token.type == tokenize.STRING and token.string.endswith('"""')
            ):
                yield from enumerate(token.string.splitlines(), start=token.start[0])


def names_of_nothing(text: str, path: Path) -> Iterator[str]:
    """The names in a line of a file that name nothing."""
    for match in _FILE.finditer(text):
        if not _is_file(match[1], match[2]) and not (path.parent / match[1]).exists():
            yield match[0]
    for match in _MODULE.finditer(text):
        if not _is_module(match[0]):
            yield match[0]
    for match in _VARIABLE.finditer(text):
        if match[0] not in _variables():
            yield match[0]
    if path.suffix == ".md":
        for match in _CODE.finditer(text):
            name = next(filter(None, match.groups()))
            if not name.startswith("MS_") and name not in _words_of_code() | PLACES | OF_OTHERS:
                yield name


def _is_file(name: str, test: str | None) -> bool:
    if name in OF_USERS | OF_OTHERS:
        return True
    found = [path for path in _paths() if path == name or path.endswith(f"/{name}")]
    if test is None:
        return bool(found)
    return any(test in {one.name for one in definitions(parsed(ROOT / path))} for path in found)


def _is_module(name: str) -> bool:
    """True for a module or package of ours, or for what one of them defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.is_file():
            rest = parts[count:]
            return not rest or re.search(rf"\b{rest[0]}\b", source.read_text(encoding="utf-8")) is not None
    return False


@cache
def _variables() -> frozenset[str]:
    """Every variable that is read, and the values that begin like one."""
    return frozenset(BY_NAME) | OF_OTHERS | {choice for setting in SETTINGS for choice in setting.choices}


@cache
def _paths() -> tuple[str, ...]:
    return tuple(name_of(path) for path in tracked_files())


@cache
def _words_of_code() -> frozenset[str]:
    """Every identifier-like word in the programs."""
    programs = [
        *python_files(),
        *(path for path in tracked_files() if path.suffix in {".sh", ".toml", ".json"}),
    ]
    return frozenset(
        word for path in programs for word in re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8"))
    )


def main() -> None:
    """List them."""
    for one in missing():
        sys.stdout.write(f"{one.file}:{one.line}: {one.name}\n")


if __name__ == "__main__":
    main()
