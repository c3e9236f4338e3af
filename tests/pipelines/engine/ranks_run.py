"""Run by test_parallel.py: a training stage in this world, from its last commit up to a step.

python ranks_run.py SECTION RECIPE START LAST WORK OVERRIDE...
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pipelines.recipe.read import read_recipe
from pipelines.rlvr.train import Trainer
from pipelines.sft.run import Trainer as SftTrainer
from pipelines.stage.report import Report


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def main() -> None:
    torch.set_num_threads(1)
    section, recipe, start, last, work, *overrides = sys.argv[1:]
    start, work = Path(start), Path(work)
    read = read_recipe(recipe, overrides)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    about = {"data": start / "data", "out": work / "out", "work": work, "seed": 0}
    about["report"] = Report(work / f"report{rank}", committed=True)
    rows, held = [], []
    if section == "rlvr":
        made = Trainer(read.rlvr, read.model, start=str(start / "sft/out/model"), **about)
        batch_of = made._batch

        def noted(step):
            batch = batch_of(step)
            (sampled,) = batch.held.exchanged(batch.sampled)
            rows.append([(row.uid, row.group, row.tokens, row.score) for row in sampled])
            held.append(len(batch.sampled))
            return batch

        made._batch = noted
    else:
        made = SftTrainer(read.sft, read.model, **about)

    def weights():
        return {name: full(weight).clone() for name, weight in made.weights.state().items()}

    begun = weights()
    made.ended = lambda steps: steps >= int(last)
    ended: dict = {}
    made.finish = lambda steps: ended.update(weights())  # before adapters are merged
    made.run()
    if made.world.rank == 0:
        torch.save(
            {
                "rows": rows,
                "held": held,
                "weights": ended,
                "start": made.start_step,
                "begun": begun,
            },
            work / f"up_to_{last}.pt",
        )


if __name__ == "__main__":
    main()
