"""What is known of each framework before a script is run: a row each. Nothing here imports one.

Their packages train on them; who starts, forks and checks scripts, looks at a machine or at checkpoints asks this table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Folders(NamedTuple):
    """How checkpoints look that a framework, or a trainer on it, writes as folders by itself."""

    last: str
    """The file that is written last: where it is, the folder is finished."""
    of_rank: str
    """Pattern of the names of files that one rank answers for; its only group is the rank."""
    export: str = ""
    """For people: what makes weights of a `{folder}`; empty: nothing is known."""


class Framework(NamedTuple):
    """One row."""

    name: str
    """Its module, its distribution, and this distribution's extra."""
    title: str
    """As people call it."""
    modules: tuple[str, ...]
    """What a template imports for a script that imports the framework, beside the script's own imports."""
    with_recovery: tuple[str, ...]
    """What it imports for one that imports `recovery` too."""
    program_world: str = ""
    """Module that forms the world of programs that know nothing of recovery (`program_address`, `program_variables`); empty: torchrun's variables do."""
    world_variables: tuple[str, ...] = ()
    """What its programs are given for each world again, beside torchrun's MASTER_ADDR and MASTER_PORT. Empty where they are never forked."""
    never_forked: str = ""
    """Why such programs are not forked; empty: they are."""
    has_dry_run: bool = False
    """Can its scripts be run without devices (`--sim_level`)?"""
    trains_through_session: bool = True
    """Does a script of it that imports `recovery` train through `recovery.run` or `recovery.init` only?"""
    devices: Mapping[str, tuple[str, ...]] = {}
    """Modules of devices, each with functions of it that are asked in a forked process: where one says yes, forks cannot use them. What a
    module does not have is not asked."""
    read_at_import: Mapping[str, str] = {}
    """Variables that its import reads for good, and what it does with them."""
    read_at_load: tuple[str, ...] = ()
    """How variables begin that its libraries read when they are loaded, and not again."""
    read_again: Mapping[str, Callable[[Any, Mapping[str, str]], None]] = {}
    """Modules under it that read at their import which worker a process is, and keep it where it can be set. A forked process, which has
    the variables of its own by then, does it again: is given the module and its variables."""
    seeded_generator: str = ""
    """Attribute of its module: a generator that an import seeds, so that a fork must seed it again."""
    gpus: Callable[[Any], Iterable[str]] | None = None
    """Given its module, names the GPUs that it sees; None: the doctor does not ask it."""
    folders: tuple[Folders, ...] = ()
    """The kinds of folders that become checkpoints."""
    shared_state: str = ""
    """Its state that all ranks can save together (`ModelCheckpoint(layout="shared")`), as a script names it; empty: it has none."""
    weights: str = ""
    """Module that writes a model's weights out of a checkpoint of its states (`export_step`); empty: none does."""
    lost_peer: tuple[bytes, ...] = ()
    """Patterns, in any case: what its programs, and the libraries under it, print where another rank is gone."""


def _gpus_of_torch(torch: Any) -> Iterator[str]:
    """Those of AMD are counted by `torch.cuda`."""
    for counting in (getattr(torch, name, None) for name in ("cuda", "xpu")):
        if counting is not None and counting.is_available():
            yield from (str(counting.get_device_name(number)) for number in range(counting.device_count()))


def _rank_of_lightning(module: Any, _: Mapping[str, str]) -> None:
    module.rank_zero_only.rank = module._get_rank() or 0  # noqa: SLF001 - as the module itself does when it is imported


def _rank_of_torchmetrics(module: Any, environ: Mapping[str, str]) -> None:
    module.rank_zero_only.rank = int(environ.get("LOCAL_RANK", "0"))


FRAMEWORKS = (
    Framework(
        name="torch",
        title="PyTorch",
        # The first optimizer imports torch._dynamo, the first world torch.distributed, the first save the rest.
        modules=(
            "torch",
            "torch._dynamo",
            "torch.distributed",
            "torch.nn.parallel.distributed",
            "torch.optim",
            "torch.utils.data",
            "torch.utils.serialization",
        ),
        with_recovery=("recovery.torch", "recovery.torch.shard_map"),
        world_variables=("GLOO_SOCKET_IFNAME",),
        devices=dict.fromkeys(
            ("torch.cuda", "torch.xpu", "torch.mtia", "torch_npu.npu"), ("_is_in_bad_fork", "is_initialized")
        ),
        read_at_load=("PYTORCH_", "TORCH_"),
        seeded_generator="default_generator",
        gpus=_gpus_of_torch,
        folders=(
            Folders(
                ".metadata",
                r"__(\d+)_\d+\.distcp",
                "torch.distributed.checkpoint: "
                "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} weights.pt`",
            ),
            # By the Trainer of transformers, and what Accelerate writes into either.
            Folders("trainer_state.json", r"(?:rng_state|random_states)_(\d+)\.(?:pth|pkl)"),
        ),
        shared_state="recovery.torch.TrainState",
        weights="recovery.torch.weights_export",
        # gloo, NCCL, the store at which ranks meet.
        lost_peer=(
            rb"\bDist(Backend|Network|Store)Error\b",
            rb"\bgloo/transport\b",
            rb"remote process (has )?exited",
            rb"\bnccl(Remote|System|Internal)Error\b",
            rb"watchdog caught collective operation timeout",
            rb"failed to recv, got 0 bytes",
            rb"socket timeout",
        ),
    ),
    Framework(
        name="lightning",
        title="Lightning",
        modules=(),
        with_recovery=("recovery.lightning.trainer", "recovery.lightning.entry"),
        read_again={
            "lightning.fabric.utilities.rank_zero": _rank_of_lightning,
            "torchmetrics.utilities.prints": _rank_of_torchmetrics,
        },
    ),
    Framework(
        name="mindspore",
        title="MindSpore",
        modules=(),
        with_recovery=("recovery.mindspore.world", "recovery.mindspore.model", "recovery.mindspore.state"),
        program_world="recovery.mindspore.control_plane",
        never_forked="those that train on MindSpore start by themselves in each world",
        has_dry_run=True,
        trains_through_session=False,
        read_at_import={"GLOG_log_dir": "chooses its log files"},
        lost_peer=(
            rb"\bsocket (closed|error)\b",
            rb"heart ?beat (timeout|lost)",
            rb"\bHCCL\b.*(timeout|fail)",
        ),
    ),
)
"""What a template imports was compared with what is loaded when a small job has ended (torch 2.13): what is missing costs less than a
millisecond."""


def used(packages: Collection[str]) -> tuple[Framework, ...]:
    """Those that are among the packages that a script imports."""
    return tuple(framework for framework in FRAMEWORKS if framework.name in packages)


def exporting(saved_by: Collection[str]) -> Framework:
    """The one that writes weights out of a checkpoint: among those that its manifest names, else the first that can."""
    able = [framework for framework in FRAMEWORKS if framework.weights]
    return next((framework for framework in able if framework.name in saved_by), able[0])


def forming_worlds() -> Mapping[str, Framework]:
    """By name, those that form the worlds of plain programs in a way of their own."""
    return {framework.name: framework for framework in FRAMEWORKS if framework.program_world}
