"""The doctor's looks at what a machine trains with: frameworks and devices."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from recovery.frameworks import FRAMEWORKS
from recovery.report.doctor_check import Check, check

_TOOL_S = 20.0
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - what the tool says while no address is set
_HCCN_TOOL = "hccn_tool"
_HCCN_PLACES = ("/usr/local/Ascend/driver/tools/hccn_tool",)


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
