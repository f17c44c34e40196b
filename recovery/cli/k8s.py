"""`recovery k8s`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from recovery.cli.formats import print_line
from recovery.cli.start import is_typed, parameter, take
from recovery.errors import SettingError
from recovery.kubernetes import render_flags as flags
from recovery.kubernetes.render import render

_LINE_MAX = 100
_NOT_OF_THE_JOB = ("action", "task", "output")


class Action(str, Enum):
    """What to do."""

    RENDER = "render"


def k8s(context: typer.Context, **_: Any) -> None:
    """Write a job as Kubernetes objects. Nothing is asked of a cluster."""
    typed = {name: value for name, value in context.params.items() if is_typed(context, name)}
    given = {name: value for name, value in typed.items() if name not in _NOT_OF_THE_JOB}
    task = tuple(typed.get("task") or ())
    text = render(flags.read(given, task), _command(given, task))
    if (output := typed.get("output")) is None:
        typer.echo(text, nl=False)
        return
    _write(output, text)
    print_line(f"{output} is written; `kubectl apply -f {output}` starts the job")


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(
            "SETTING_RANGE",
            field="--output",
            value=output,
            rule=f"cannot be written ({error.strerror})",
            next_step="Give a file in a directory that is there, and that this user may write.",
        ) from error


def _command(given: dict[str, Any], task: tuple[str, ...]) -> list[str]:
    """The command line that makes the same file, as lines of a shell, in the order of --help."""
    words = [
        f"{_typed(name)}={value}"
        for name, flag in flags.FLAGS.items()
        if name in given
        for value in (given[name] if flag.repeats else [given[name]])
    ]
    words += [_typed(name) for name in flags.SWITCHES if given.get(name)]
    words += ["--", *task]
    lines = ["recovery k8s render"]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > _LINE_MAX:
            lines[-1] += " \\"
            lines.append(f"   {word}")
        else:
            lines[-1] += f" {word}"
    return [f"made by: {lines[0]}", *lines[1:]]


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameters() -> Iterator[Parameter]:
    """The command's parameters, as Typer reads them from a function."""
    yield parameter("context", typer.Context, default=Parameter.empty)
    action = typer.Argument(help="render: write the YAML of a job")
    yield parameter("action", Annotated[Action, action], default=Parameter.empty)
    for name, flag in flags.FLAGS.items():
        option = typer.Option(_typed(name), metavar="VALUE", help=flag.help)
        kind = list[str] if flag.repeats else str
        yield parameter(name, Annotated[kind | None, option])
    for name, text in flags.SWITCHES.items():
        yield parameter(name, Annotated[bool, typer.Option(_typed(name), help=text)], default=False)
    output = typer.Option("--output", "-o", help="file to write; without it standard output")
    yield parameter("output", Annotated[Path | None, output])
    task = typer.Argument(metavar="-- script [arguments]", help="what every process runs", parser=str)
    yield parameter("task", Annotated[list[str] | None, task])


take(k8s, _parameters())
