"""`recovery export-weights`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from recovery.checkpoint import whole_step
from recovery.cli.formats import print_line
from recovery.errors import UsageError
from recovery.frameworks import exporting


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
    framework = exporting(whole.of.versions)
    try:
        module = importlib.import_module(framework.weights)
    except ImportError as error:
        raise UsageError(
            field="export-weights",
            reason=f"needs {framework.title} ({error})",
            next_step=f"pip install 'recovery-engine[{framework.name},weights]'.",
        ) from error
    done = module.export_step(whole, folder, part=part, number=number, file_bytes_max=file_bytes)
    for key in done.left_out:
        print_line(f"left out: {key} is no tensor")
    for file in done.files:
        print_line(f"written: {file}")
    print_line(
        f"{done.tensors} tensors, {done.total_bytes} bytes, of step {whole.of.step} that {whole.of.world_size} ranks saved"
    )
