"""Proves from the step logs that no step was counted twice, skipped, or done by who may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recovery.checkpoint import manifest


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; a killed process may have left half a last one."""
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def check_history(path: Path, *, last_step: int, live: bool = False, paused: int | None = None) -> None:
    """The applied steps of each rank are 1..last_step once rolled-back suffixes are removed, in rising generations.

    Args:
        path: the log that MS_STEP_LOG named.
        last_step: of the undisturbed run.
        live: a rank may take a step that it has not done from another's memory, one at the start of each generation.
        paused: the rank of which a process was stopped and replaced: it may have been past its check of one step.
    """
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for line in lines(path):
        by_rank.setdefault(line["rank"], []).append(line)
    assert by_rank, "nobody applied a step"
    for rank, applied in sorted(by_rank.items()):
        if rank == paused:
            _forget_step_under_way(applied)
        kept: list[int] = []
        generation = incarnation = 0
        for line in applied:
            assert line["generation"] >= generation, (
                f"rank {rank} stepped in generation {line['generation']} after {generation}"
            )
            # From one generation to the next another node may have taken the rank, which counts its own incarnations.
            if line["generation"] > generation:
                del kept[line["step"] - 1 :]
                taken = line["step"] - 1 - len(kept)
                if live and taken <= line["generation"] - generation:
                    kept += range(len(kept) + 1, line["step"])
            else:
                assert line["incarnation"] == incarnation, f"two incarnations of rank {rank} stepped"
            assert line["step"] == len(kept) + 1, (
                f"rank {rank}: step {line['step']} after {len(kept)} in generation {line['generation']}"
            )
            kept.append(line["step"])
            generation, incarnation = line["generation"], line["incarnation"]
        assert kept == list(range(1, last_step + 1)), f"rank {rank} ended at step {len(kept)} of {last_step}"


def _forget_step_under_way(applied: list[dict[str, Any]]) -> None:
    """Drop the one step that a process had under way when it was stopped, and counted when its rank was another's."""
    for place, line in enumerate(applied):
        its_own = [one for one in applied[:place] if one["incarnation"] == line["incarnation"]]
        if its_own and any(one["generation"] > line["generation"] for one in applied[:place]):
            assert line["step"] == its_own[-1]["step"] + 1
            del applied[place]
            return


def check_saves(directory: Path, path: Path) -> None:
    """Every checkpoint that lies there was saved by an incarnation that was allowed to: the one that applied its step.

    Args:
        directory: one folder per rank, with checkpoints and their manifests.
        path: the log that MS_STEP_LOG named.
    """
    applied = {(line["rank"], line["generation"], line["incarnation"], line["step"]) for line in lines(path)}
    found = [manifest.read_manifest(path) for path in sorted(directory.glob("*/*.json"))]
    assert found, "nothing was saved"
    for one in found:
        saved = (one.rank, one.generation, one.incarnation, one.step)
        assert saved in applied, (
            f"{one.file} of rank {one.rank} was saved by an incarnation that did not apply its step"
        )


def named_beside(log: str) -> list[str]:
    """What a rank's log says that a script has beside its parts: of a job that has nothing, also a survivor, which has had all of it before, says nothing."""
    events = ("event=not_a_part", "event=own_generator")
    return [line for line in log.splitlines() if any(event in line for event in events)]


def samples(path: Path) -> dict[int, list[int]]:
    """The sample ids that counted at each step: those of the newest generation that did it."""
    return {line["step"]: line["ids"] for line in lines(path)}


def saved(directory: Path) -> dict[int, Path]:
    """The checkpoints of one rank whose manifest is published, by step."""
    found = [(manifest.read_manifest(path), path) for path in directory.glob("*.json")]
    return {one.step: path.with_name(one.file) for one, path in found}
