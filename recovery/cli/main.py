"""`recovery`: the list of its commands. Each is a file of this package, which is imported when it is called."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import signal
import sys
from typing import Annotated, Any, NamedTuple, TextIO

import typer
from typer.core import TyperGroup
from typing_extensions import override

from recovery import process_conditions, standard_streams
from recovery.errors import RecoveryError

_PACKAGE = "recovery-engine"
_WrongWords: Any = typer.BadParameter.__base__
"""Of click, or of Typer's own copy of it, as the release of Typer has it."""
_STANDARD_OUTPUT = "standard output"
_ABSENT = 65
"""What was named cannot be read or written by this command (EX_DATAERR of sysexits.h)."""


class Command(NamedTuple):
    """One row."""

    name: str
    """As it is typed."""
    panel: str
    """The heading that `recovery --help` shows it under."""
    help: str
    settings: dict[str, Any] | None = None
    """How its words are read, where that is not as for other commands."""

    @property
    def identifier(self) -> str:
        """The name of its file, and of the function in it."""
        return self.name.replace("-", "_")


_AS_MSRUN = {
    # What comes behind the script is the script's own.
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("-", "_"),
}

START, LOOK, MAINTAIN, MACHINE = "Start a job", "Look at a job", "Maintain a job", "Look at this machine"

COMMANDS = (
    Command(
        "msrun",
        START,
        "Start a job's processes on this host, watch them, restart those that die. Hyphens and underscores in its flags mean the same.",
        settings=_AS_MSRUN,
    ),
    Command(
        "run",
        START,
        "Start a script with torchrun's command line, and with recovery on. Hyphens and underscores in its flags mean the same.",
        settings=_AS_MSRUN,
    ),
    Command(
        "slurm",
        START,
        "Write the batch script of a job on Slurm, or submit it: recovery slurm [options of sbatch] -- [options of recovery run] train.py.",
        settings={
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            "help_option_names": ["-h", "--help"],
        },
    ),
    Command(
        "scheduler",
        START,
        "Be the scheduler of the job that the MS_* variables describe, until it ends. Imports no framework.",
    ),
    Command(
        "k8s",
        START,
        "k8s render: a job as YAML for Kubernetes (JobSet, Indexed Jobs, Kubeflow Trainer). Asks nothing of a cluster. The script comes behind --.",
        settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    ),
    Command("stop", START, "End a job that `recovery msrun --join=False` has started."),
    Command(
        "status",
        LOOK,
        "Where the job stands: state, who is missing, newest common checkpoint, last events.",
    ),
    Command("top", LOOK, "The status, kept up to date."),
    Command(
        "open",
        LOOK,
        "The job in a browser, live or over: what each rank does, checkpoints, recoveries and what they cost.",
    ),
    Command("nodes", LOOK, "The nodes: rank, incarnation, state, step, why."),
    Command("steps", LOOK, "How far each worker has noted that it is."),
    Command("checkpoints", LOOK, "Every rank's checkpoints, newest first."),
    Command("generations", LOOK, "The generations: where each began, why, and why it ended."),
    Command("events", LOOK, "The events of the job, oldest first."),
    Command(
        "plan",
        LOOK,
        "What a restart now would do: target step, each rank's file and whether it verifies, steps lost, who is still refused.",
    ),
    Command(
        "timeline",
        LOOK,
        "The job in time: what each rank did, goodput, and what each failure cost, part by part.",
    ),
    Command(
        "metrics",
        LOOK,
        "Goodput, restarts, lost steps, checkpoints and nodes in the text format of Prometheus, of a job that runs or does not.",
    ),
    Command(
        "verify",
        MAINTAIN,
        "Check databases, rows, checkpoints and manifests. Exit code 1 with one line per finding.",
    ),
    Command(
        "export",
        MAINTAIN,
        "Everything that is stored, in one JSON document, for a bug report. Holds no secrets.",
    ),
    Command(
        "export-weights",
        MAINTAIN,
        "The weights out of a checkpoint, as safetensors: digests all ranks' files first. Needs the extra `weights`.",
    ),
    Command(
        "drain",
        MAINTAIN,
        "Hand the rank of a node, or the ranks of a host, over to standbys, at a step that is saved first. Runs on the scheduler's host.",
    ),
    Command("forget", MAINTAIN, "End a lost node's rejoin window now. Refused while a scheduler runs."),
    Command(
        "reset",
        MAINTAIN,
        "Archive the job's state, so that the next start is a new job. Deletes nothing. Refused while a process uses it.",
    ),
    Command(
        "rebuild",
        MAINTAIN,
        "Have the next scheduler rebuild its lost store from what the workers, their own stores and checkpoints report. Deletes nothing; refused where one is there.",
    ),
    Command(
        "certs",
        MACHINE,
        "Certificates for TLS: make an authority with everything that a job needs, take a certificate back, list them.",
    ),
    Command("env", MACHINE, "Every MS_* variable: value, where it comes from, rule."),
    Command(
        "doctor",
        MACHINE,
        "Check the environment before a job: variables, port, recovery path, disk, clock, frameworks, devices. Exit code 1 on a finding.",
    ),
)


class _Commands(TyperGroup):
    """The group of all commands. It holds only their names and helps, and loads the one that is called."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find and load the command that is called. Gives its name, itself, and the arguments that are its own."""
        name, unloaded, rest = super().resolve_command(ctx, args)
        # As typed: what reads them for a command drops `--`.
        ctx.meta["words"] = tuple(rest)
        return name, None if unloaded is None else load(str(unloaded.name)), rest


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib import metadata  # noqa: PLC0415 - other commands need none of it

        typer.echo(f"{_PACKAGE} {metadata.version(_PACKAGE)}")
        raise typer.Exit


@app.callback()
def recovery(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end"),
    ] = False,
) -> None:
    """Recovery engine for data-parallel training."""


def _unloaded() -> None:
    """In the place of a command that was not called."""


for _row in COMMANDS:
    app.command(_row.name, help=_row.help, rich_help_panel=_row.panel)(_unloaded)


def load(name: str) -> Any:
    """Import one command. Gives it as the group would hold it."""
    row = next(row for row in COMMANDS if row.name == name)
    function = getattr(importlib.import_module(f"recovery.cli.{row.identifier}"), row.identifier)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, help=row.help, context_settings=row.settings)(function)
    return typer.main.get_command(alone)


def _in_one_line(error: Any) -> str:
    """What is wrong with the words of a command, and the next thing to type."""
    said = " ".join(error.format_message().split()).rstrip(".?")
    command = error.ctx.command_path if error.ctx is not None else "recovery COMMAND"
    option = getattr(error, "option_name", "")
    example = f" Write {option}=VALUE; of a switch, {option}=True." if option else ""
    return f"{said}.{example} `{command} --help` lists what there is."


class _StandardOutput(io.FileIO):
    """Says of each error that it is its own, where others name their file."""

    @override
    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            # What is still held for it would fail again at the end.
            standard_streams.send_nowhere(sys.stdout)
            if error.errno == errno.EPIPE:
                # `| head` has read enough. Typer would make 1 of it.
                sys.exit(128 + signal.SIGPIPE)
            error.filename = _STANDARD_OUTPUT
            raise


def _open_standard_output(given: TextIO) -> TextIO:
    """The same file; what is captured stays as it is."""
    try:
        raw = _StandardOutput(given.fileno(), "wb", closefd=False)
    except OSError:
        return given
    # A path need not be text.
    return io.TextIOWrapper(
        io.BufferedWriter(raw), given.encoding, "backslashreplace", line_buffering=given.isatty()
    )


def main() -> None:
    """Run the command; an error of ours is one line and its exit code."""
    standard_streams.hold()
    process_conditions.wait_for_children()
    given = sys.stdout
    if isinstance(given, io.TextIOWrapper):
        given.flush()
        sys.stdout = _open_standard_output(given)
    try:
        code = app(standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code)
    except _WrongWords as error:
        # Without any word the help was printed.
        if error.format_message():
            typer.echo(_in_one_line(error), err=True)
        sys.exit(error.exit_code)
    except typer.Abort:
        typer.echo("Aborted.", err=True)
        sys.exit(1)
    except RecoveryError as error:
        typer.echo(error.fact, err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # A file that this command was given, or its standard output.
        typer.echo(f"{error.filename or 'a file'}: {error.strerror or error}", err=True)
        sys.exit(_ABSENT)
    finally:
        sys.stdout = given
        # The interpreter's end would look for cycles among all that was read.
        gc.freeze()


if __name__ == "__main__":
    main()
