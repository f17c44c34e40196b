"""What is made of a command line."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.cli.main import load
from recovery.cli.msrun import arguments_of
from recovery.launch.job_spec import JobSpec
from recovery.launch.msrun.arguments import Arguments


def parse(words: Sequence[str]) -> Arguments:
    """As `recovery msrun` reads them.

    Args:
        words: without the command's own name.
    """
    return arguments_of(load("msrun").make_context("recovery msrun", [*words]))


def job(words: Sequence[str]) -> JobSpec:
    """The same for the launcher."""
    return parse(words).job_spec()
