"""`recovery export-weights`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recovery.checkpoint import whole_step
from recovery.cli.formats import print_line
from recovery.errors import UsageError


def export_weights(
    path: Annotated[
        Path,
        typer.Argument(
            help="a checkpoint, or the directory of the ranks' checkpoints", metavar="PATH", readable=False
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="where the safetensors go; made if absent", metavar="DIR")],
    step: Annotated[
        int | None, typer.Option(help="this step, over all epochs, instead of the newest that all ranks hold")
    ] = None,
    part: Annotated[str, typer.Option(help="which part of the training state")] = "model",
    number: Annotated[int, typer.Option(help="which of a part that is a list, from 0", min=0)] = 0,
    file_bytes: Annotated[
        int,
        typer.Option(help="how large a file may become, in bytes; more weights go into further files", min=1),
    ] = 5_000_000_000,
) -> None:
    """Digest a checkpoint's files, then write a model's weights as safetensors. Changes nothing that is there."""
    whole = whole_step.of_file(path, step) if path.is_file() else whole_step.find(path, step)
    try:
        from recovery.torch import resharding, weights_export  # noqa: PLC0415 - needs torch, which no other command does
    except ImportError as error:
        raise UsageError(
            field="export-weights",
            reason=f"needs PyTorch ({error})",
            next_step="pip install 'recovery-engine[torch,weights]'.",
        ) from error
    done = weights_export.export(
        resharding.Saved(whole), folder, part=part, number=number, file_bytes_max=file_bytes
    )
    for key in done.left_out:
        print_line(f"left out: {key} is no tensor")
    for file in done.files:
        print_line(f"written: {file}")
    print_line(
        f"{done.tensors} tensors, {done.total_bytes} bytes, of step {whole.of.step} that {whole.of.world_size} ranks saved"
    )
