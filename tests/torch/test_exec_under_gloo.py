"""Replacing a process must not end it: gloo's threads live until exec, and one whose descriptor is closed under it aborts."""

from __future__ import annotations

import pytest

from tests.untraced import run_module

WORLDS = 20
"""Forty replacements. One in eight ended in SIGABRT while descriptors were closed before exec."""


@pytest.mark.slow
def test_no_replacement_under_gloos_living_threads_aborts() -> None:
    done = run_module(f"tests.torch.exec_under_gloo {WORLDS}")

    assert done.stdout.strip() == f"{2 * WORLDS} of {2 * WORLDS} well {{}}", (
        done.stdout + done.stderr[-2_000:]
    )
