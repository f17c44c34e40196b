"""What is made of a command line."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.cli.main import load
from recovery.cli.msrun import _typed
from recovery.launch.job_spec import JobSpec
from recovery.launch.msrun.flags import job_spec


def job(words: Sequence[str]) -> JobSpec:
    """The job, as `recovery msrun` reads it.

    Args:
        words: without the command's own name.
    """
    context = load("msrun").make_context("recovery msrun", [*words])
    return job_spec(_typed(context), context.params["task"] or ())
