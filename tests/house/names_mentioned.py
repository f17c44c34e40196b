"""Files, modules, tests, settings and words of code that documents and comments name, and that are not there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from recovery.config.table import BY_NAME, SETTINGS
from tests.house.files import (
    ROOT,
    Finding,
    definitions,
    name_of,
    text_of,
    tracked_files,
)

OF_USERS = frozenset({"train.py", "script.py", "net.py", "my_train.py", "my_job.py", "another.py"})
"""Files that a user would have."""
OF_OTHERS = frozenset(
    {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
        "MLFLOW_HTTP_REQUEST_TIMEOUT",
        "MS_RESUME_TOKEN",
        "MS_SIMULATION_LEVEL",
        "parameter_broadcast",
        "parallel/cluster/process_entity/_bind.py",
        "purge_step",
    }
)
"""A variable of ours that no user sets, and names of MindSpore, MLflow and TensorBoard."""

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


Position = tuple[int, int]
"""Line and column, as `tokenize` counts them."""


def missing() -> Iterator[Finding]:
    """Every name of nothing, in the order of the files."""
    for path in tracked_files():
        if path.suffix in {".md", ".py"}:
            found = sorted(_names_of_nothing(path))
            if found and path.suffix == ".py":
                spans = list(_for_people(path))
                found = [one for one in found if any(begin <= one[0] < end for begin, end in spans)]
            for (line, _), name in found:
                yield Finding(path, line, f"nothing is called {name}", "name what there is")


def _for_people(path: Path) -> Iterator[tuple[Position, Position]]:
    """Where a program's comments and docstrings begin and end."""
    for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.endswith('"""')):
            yield token.start, token.end


def _names_of_nothing(path: Path) -> Iterator[tuple[Position, str]]:
    """The names in a file that name nothing, with their places."""
    text = text_of(path)
    allowed = OF_ITS_DOCUMENTS if name_of(path) in FROM_MINDSPORE else frozenset[str]()
    for match in _named(text, path):
        name = _unknown(match, path)
        if name and name not in allowed:
            before = text[: match.start()]
            yield (before.count("\n") + 1, len(before) - before.rfind("\n") - 1), name


def _named(text: str, path: Path) -> Iterator[re.Match[str]]:
    patterns = (_FILE, _MODULE, _VARIABLE, _CODE) if path.suffix == ".md" else (_FILE, _MODULE, _VARIABLE)
    for pattern in patterns:
        yield from pattern.finditer(text)


def _unknown(match: re.Match[str], path: Path) -> str:
    """The name that was matched when it names nothing; empty: there is such a thing."""
    if match.re is _FILE:
        is_known = _is_file(match[1], match[2]) or (path.parent / match[1]).exists()
        return "" if is_known else match[0]
    if match.re is _MODULE:
        return "" if _is_module(match[0]) else match[0]
    if match.re is _VARIABLE:
        return "" if match[0] in _variables() else match[0]
    name = next(filter(None, match.groups()))
    return "" if name.startswith("MS_") or name in _words_of_code() else name


@cache
def _is_file(name: str, test: str | None) -> bool:
    if name in OF_USERS | OF_OTHERS:
        return True
    found = [path for path in _paths() if path == name or path.endswith(f"/{name}")]
    if test is None:
        return bool(found)
    return any(test in {one.name for one in definitions(ROOT / path)} for path in found)


@cache
def _is_module(name: str) -> bool:
    """True for a module or package of ours, or for what one of them defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.is_file():
            rest = parts[count:]
            return not rest or re.search(rf"\b{rest[0]}\b", text_of(source)) is not None
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
    """Every identifier-like word in the programs, and what a document may name besides."""
    programs = [path for path in tracked_files() if path.suffix in {".py", ".sh", ".toml", ".json"}]
    words = set(PLACES | OF_OTHERS)
    for path in programs:
        words.update(re.findall(r"[A-Za-z_]\w*", text_of(path)))
    return frozenset(words)
