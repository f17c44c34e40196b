"""`python -m tests.simulation --seeds 500`: many jobs under random faults in virtual time.

A failure prints its seed, the faults that are needed for it, the last things that happened, and the command that replays it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import resource
import sys
import time
from functools import partial

from tests.simulation.run import Outcome, run, shrink, total

REPEATED_SHARE = 100
"""Every so manyeth seed runs twice; both must leave the same trace."""


def main() -> int:
    """Run what was asked for. Returns the exit code."""
    options = _options()
    if options.seed is not None:
        outcome = run(options.seed, workers=options.workers, drains=options.drains)
        _report(outcome, options)
        return 1 if outcome.failure else 0
    seeds = range(options.first, options.first + options.seeds)
    begun = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        one = partial(run, workers=options.workers, drains=options.drains)
        outcomes = list(pool.map(one, seeds, chunksize=5))
        again = seeds[::REPEATED_SHARE]
        repeated = list(pool.map(one, again))
    seconds = time.monotonic() - begun
    failed = [outcome for outcome in outcomes if outcome.failure]
    differing = [
        one.seed for one in repeated if one.fingerprint != outcomes[one.seed - options.first].fingerprint
    ]
    for outcome in failed[: options.show]:
        _report(shrink(outcome, workers=options.workers, drains=options.drains), options)
    _print_summary(outcomes, seconds, options.json)
    if differing:
        print(f"not deterministic: seeds {differing}")
    if failed:
        print(
            f"{len(failed)} of {len(outcomes)} seeds failed: {' '.join(str(outcome.seed) for outcome in failed[:20])}"
        )
    return 1 if failed or differing else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many (500)")
    parser.add_argument("--first", type=int, default=0, help="the first one (0)")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--workers", type=int, help="in every seed; otherwise drawn")
    parser.add_argument("--drains", action="store_true", help="ranks are asked to depart in every seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (all cores)")
    parser.add_argument("--show", type=int, default=3, help="how many failures are shrunk and shown (3)")
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object")
    return parser.parse_args()


def _report(outcome: Outcome, options: argparse.Namespace) -> None:
    for line in outcome.log:
        print(line)
    print(
        f"seed {outcome.seed}: {outcome.failure or 'every promise was kept'}; trace {outcome.fingerprint[:16]}"
    )
    print(f"  faults: {', '.join(f'{fault.at_ms / 1000:g} s {fault.kind}' for fault in outcome.faults)}")
    more = f" --workers {options.workers}" if options.workers else ""
    more += " --drains" if options.drains else ""
    print(f"  again: python -m tests.simulation --seed {outcome.seed}{more}", flush=True)


def _processor_s() -> float:
    """Of this process and of those that it has waited for: other work on the machine moves it less than the clock on the wall."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _print_summary(outcomes: list[Outcome], seconds: float, as_json: bool) -> None:
    simulated_s = sum(outcome.simulated_ms for outcome in outcomes) / 1000
    seen, checked = total(outcomes, "seen"), total(outcomes, "checked")
    figures = {
        "seeds": len(outcomes),
        "simulated_s": round(simulated_s),
        "wall_s": round(seconds, 1),
        "simulated_s_per_s": round(simulated_s / seconds),
        "simulated_s_per_processor_s": round(simulated_s / _processor_s()),
        "events": sum(outcome.events for outcome in outcomes),
        "faults": sum(count for name, count in seen.items() if name.startswith("fault: ")),
        "checks": sum(checked.values()),
    }
    if as_json:
        print(json.dumps({**figures, "seen": dict(seen), "checked": dict(checked)}))
        return
    for name, count in [*sorted(checked.items()), *sorted(seen.items())]:
        print(f"  {count:>9,}  {name}")
    print("  ".join(f"{name} {value:,}" for name, value in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
