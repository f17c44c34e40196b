"""How soon does the live page of a large job show something?

    python benchmarks/live_page.py [--nodes 1000] [--failures 32] [--rounds 5] [--json]

`recovery open` on the files of a job of so many ranks after so many failures (about three events of each rank for a failure), and Chromium, which
opens the link anew each round. Rows: what, median and worst in milliseconds, n.

paint     from the link to the first paint
figures   to the figures of now
timeline  to the timeline of all ranks
link      from the command to its link
history   one reading of what has happened, which is done when the command begins and then now and then
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from recovery.report.page_history import history_of_path
from tests.page.chromium import browser
from tests.page.opened import opened
from tests.report import long_job

_WATCH = """
window.seen = {};
addEventListener("DOMContentLoaded", () => {
  for (const [name, id] of [["figures", "figures"], ["timeline", "key"]]) {
    const note = () => { window.seen[name] ??= performance.now(); };
    new MutationObserver(note).observe(document.getElementById(id), { childList: true });
  }
});
"""
_SEEN = """
const paint = performance.getEntriesByName("first-contentful-paint")[0];
return window.seen.figures && window.seen.timeline && paint ? { paint: paint.startTime, ...window.seen } : null;
"""


def main() -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--failures", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job"
        long_job.write(path, nodes=options.nodes, failures=options.failures)
        rows = _measure(path, options.rounds)
    for name, found in rows.items():
        row = {
            "what": name,
            "median_ms": statistics.median(found),
            "worst_ms": max(found),
            "n": len(found),
        }
        print(
            json.dumps(row)
            if options.json
            else f"{name:<10}{row['median_ms']:>10.0f}{row['worst_ms']:>10.0f}{len(found):>6}"
        )
    return 0


def _measure(path: Path, rounds: int) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {name: [] for name in ("paint", "figures", "timeline", "link", "history")}
    for _ in range(rounds):
        begun = time.monotonic()
        history_of_path(path, 0)
        rows["history"].append((time.monotonic() - begun) * 1000)
    begun = time.monotonic()
    with opened(path) as link, browser() as shown:
        rows["link"].append((time.monotonic() - begun) * 1000)
        shown.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        # As a person does: the first reading is over, or nearly.
        shown.driver.get(link)
        shown.until(lambda: shown.ask(_SEEN), "all of it")
        for _ in range(rounds):
            shown.driver.get("about:blank")
            shown.driver.get(link)
            shown.until(lambda: shown.ask(_SEEN), "all of it")
            for name, at_ms in shown.ask(_SEEN).items():
                rows[name].append(at_ms)
    return rows


if __name__ == "__main__":
    sys.exit(main())
