"""Run by test_parallel.py: the gradient of a stored step, and a commit, in this world.

python two_processes.py RECIPE START STEP OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pipelines.contract.method import PolicyUpdate
from pipelines.engine import checkpoint
from pipelines.engine.checkpoint import Pieces
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.train import Trainer
from pipelines.stage.report import Report


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def whole(value):
    """A state with its pieces put together."""
    if isinstance(value, Pieces):
        return value.rows(0, value.shape[0])
    return {key: whole(item) for key, item in value.items()} if isinstance(value, dict) else value


def main() -> None:
    torch.set_num_threads(1)
    recipe, start, step, out = (Path(p) for p in sys.argv[1:5])
    overrides = sys.argv[5:]
    read = read_recipe(recipe, overrides)
    (out / "out").mkdir(parents=True, exist_ok=True)
    made = Trainer(
        read.rlvr,
        read.model,
        start=str(start / "sft/out/model"),
        data=start / "data",
        out=out / "out",
        work=out,
        report=Report(out / f"report{torch.distributed.get_rank() if torch.distributed.is_initialized() else 0}"),
        seed=0,
    )
    _, columns = torch.load(step, weights_only=False)
    learner = made.learner
    stepper, seen = learner.stepper.step, []

    def watched(number):
        seen.append({n: full(p.grad).clone() for n, p in learner.model.named_parameters() if p.grad is not None})
        return stepper(number)

    learner.stepper.step = watched
    numbers = learner.learn([PolicyUpdate(columns)])
    made._setup()
    made._commit(1)
    made.committer.wait()
    made.world.gather(None)
    committed = checkpoint.load(made.committer.folder)
    made._restore(committed)
    state = {part: whole(committed[part]) for part in ("model", "optimizer")}
    rows, kept = made.collect(0)
    if made.world.rank == 0:
        body = {"gradients": seen, "state": state, "numbers": numbers, "rows": len(rows), "kept": len(kept)}
        torch.save(body, out / "result.pt")


if __name__ == "__main__":
    main()
