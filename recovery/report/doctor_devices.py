"""The doctor's looks at what a machine trains with: frameworks and devices."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from recovery.frameworks import FRAMEWORKS
from recovery.report.doctor_check import Check, check

_TOOL_S = 20.0
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - what the tool says while no address is set
_HCCN_TOOL = "hccn_tool"
_HCCN_PLACES = ("/usr/local/Ascend/driver/tools/hccn_tool",)
_NO_DEVICES = "No devices were found"
"""What nvidia-smi says where it is installed and there is no GPU, with an exit code of its own."""


def frameworks() -> Check:
    """Those that are installed here."""
    found = []
    names = [framework.name for framework in FRAMEWORKS]
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    if found:
        return check("frameworks", ", ".join(found))
    ways = ", or ".join(f"recovery-engine[{name}]" for name in names)
    return check("frameworks", f"none of {', '.join(names)}", f"Install one: pip install {ways}.")


def gpus(environ: Mapping[str, str]) -> Check:
    """Those that a framework sees in this process; where none is installed or none sees any, those that nvidia-smi names.

    Args:
        environ: where the tool is looked for.
    """
    looks = {each.name: each.gpus for each in FRAMEWORKS if each.gpus is not None and _is_here(each.name)}
    fault = None
    for name, look in looks.items():
        seen, warned = _seen_by(name, look)
        if seen:
            return check("GPUs", _counted(seen))
        if warned:
            step = f"Install a driver that suits this {name}, or a {name} that suits the driver."
            fault = fault or check("GPUs", f"none that {name} can use: {warned}", step)
    return fault or _named_by_tool(environ, "".join(f"; {name} sees none" for name in looks))


def _is_here(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def _seen_by(framework: str, look: Callable[[Any], Iterable[str]]) -> tuple[list[str], str]:
    """Names of GPUs, and what was warned of where there are none: a driver that is too old is no error of torch's."""
    module = importlib.import_module(framework)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = list(look(module))
    return found, " ".join(str(warned[0].message).split()) if warned else ""


def _named_by_tool(environ: Mapping[str, str], unseen: str) -> Check:
    """What nvidia-smi names, and which frameworks do not see it."""
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if tool is None:
        return check("GPUs", "none")
    said, code = _said([tool, "--query-gpu=name", "--format=csv,noheader"])
    names = [line.strip() for line in said.splitlines() if line.strip()]
    if _NO_DEVICES in said or (not names and code == 0):
        return check("GPUs", "none")
    if code != 0:
        step = "Correct the driver: run nvidia-smi, which must name the GPUs."
        return check("GPUs", f"nvidia-smi names none: {_first_line(said, code)}", step)
    return check("GPUs", f"{_counted(names)}, by nvidia-smi{unseen}")


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())


def ascend(environ: Mapping[str, str]) -> Iterator[Check]:
    """On Ascend hosts, the two looks at the devices' network that MindSpore's documents name; nothing elsewhere."""
    tool = shutil.which(_HCCN_TOOL, path=environ.get("PATH")) or next(
        (place for place in _HCCN_PLACES if Path(place).exists()), None
    )
    if tool is None:
        return
    device = environ.get("DEVICE_ID", "0")
    good: tuple[tuple[str, str, Callable[[str], bool], str], ...] = (
        (
            "net health",
            "-net_health",
            lambda said: "Success" in said,
            "Listing at the switch and the cable of that device.",
        ),
        (
            "netdetect",
            "-netdetect",
            lambda said: "address" in said and _NO_ADDRESS not in said,
            f"Name an address to detect: {_HCCN_TOOL} -i {device} -netdetect -s address ADDRESS.",
        ),
    )
    for name, flag, is_good, step in good:
        said, code = _said([tool, "-i", device, flag, "-g"])
        yield check(f"device {device} {name}", _first_line(said, code), "" if is_good(said) else step)


def _said(words: Sequence[str]) -> tuple[str, int]:
    """What a tool of the devices says, with what is no text marked, and its exit code; 127: it did not start, or did not end, and why."""
    try:
        done = subprocess.run(  # noqa: S603 - the device's own tool
            words, capture_output=True, text=True, errors="replace", check=False, timeout=_TOOL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), 127
    return (done.stdout + done.stderr).strip(), done.returncode


def _first_line(said: str, code: int) -> str:
    return next(iter(said.splitlines()), f"exit code {code}")
