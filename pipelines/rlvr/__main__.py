"""`python -m pipelines.rlvr WORK`."""

from __future__ import annotations

from pipelines.engine import loop
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import reward_models
from pipelines.rlvr.train import Trainer
from pipelines.stage import process

work = loop.work("rlvr", Rlvr, Trainer, fields=reward_models.with_folders)

if __name__ == "__main__":
    process.main(work)
