"""torch's exception hook does not stay behind the worlds that the engine forms."""

from __future__ import annotations

import sys

from recovery.torch.warm_up import warm_up


def test_the_warm_up_leaves_the_exception_hook_as_it_was() -> None:
    before = sys.excepthook
    warm_up()
    assert sys.excepthook is before
