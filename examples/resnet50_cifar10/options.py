"""The options of both scripts: each is a flag, and also the variable of the same name in capitals (`--save_steps 20`, SAVE_STEPS=20)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the flags; what no flag says, its variable says.

    Args:
        words: without the script's own name; none under pytest, whose words are not the script's.
    """
    parser = argparse.ArgumentParser(description="ResNet-50 on CIFAR-10, with disaster recovery.")
    for name, kind, default, text in FLAGS:
        value = os.environ.get("DATA_PATH" if name == "data" else name.upper(), default)
        parser.add_argument(
            f"--{name}", type=kind, default=value, help=f"{text} ({default})" if default else text
        )
    return parser.parse_args(list(words))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


FLAGS: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
    (
        "data",
        str,
        "",
        "folder with CIFAR-10's data_batch_*.bin, also DATA_PATH; without it a set is generated",
    ),
    ("samples", int, "0", "use only so many images; 0: all"),
    ("epochs", int, "10", "passes over the data"),
    ("batch_size", int, "32", "images of a rank's batch"),
    ("save_steps", int, "100", "steps between two checkpoints"),
    ("resize", int, "224", "side of the images that the network gets"),
    ("width", int, "64", "channels of the first layer"),
    ("blocks", _numbers, "3,4,6,3", "blocks of each of the four stages"),
    ("step_ms", int, "0", "pause in every step, so that there is time to kill something"),
)
"""Name, how it is read, default, meaning."""
