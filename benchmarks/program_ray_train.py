"""The steps of `node_lost.py` in Ray Train, which starts its whole group again when a node is lost: `python program_ray_train.py ADDRESS DIRECTORY`.

Each rank appends a line to DIRECTORY/steps.jsonl after each step of 20 ms, and all save every 5 steps.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

STEPS, STEP_S, SAVE_STEPS = 4_000, 0.02, 5


def train(config: dict[str, str]) -> None:
    """One rank."""
    rank, generation, first = ray.train.get_context().get_world_rank(), 1, 1
    found = ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            state = json.loads((Path(directory) / "state").read_text())
        first, generation = state["step"] + 1, state["generation"] + 1
    with Path(config["directory"], "steps.jsonl").open("a") as log:
        for step in range(first, STEPS + 1):
            if Path(config["directory"], "done").exists():
                return
            time.sleep(STEP_S)
            line = {"rank": rank, "step": step, "generation": generation, "wall_ms": time.time() * 1000}
            log.write(json.dumps(line) + "\n")
            log.flush()
            if step % SAVE_STEPS == 0:
                with tempfile.TemporaryDirectory() as directory:
                    (Path(directory) / "state").write_text(
                        json.dumps({"step": step, "generation": generation})
                    )
                    ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))


def main() -> None:
    """Run it."""
    address, directory = sys.argv[1:]
    ray.init(address=address)
    DataParallelTrainer(
        train,
        train_loop_config={"directory": directory},
        scaling_config=ray.train.ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=ray.train.RunConfig(
            storage_path=directory, failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    ).fit()


if __name__ == "__main__":
    main()
