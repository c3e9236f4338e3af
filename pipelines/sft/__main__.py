"""`python -m pipelines.sft WORK`."""

from __future__ import annotations

from pipelines.engine import loop
from pipelines.recipe.settings import Sft
from pipelines.sft.run import Trainer
from pipelines.stage import process

work = loop.work("sft", Sft, Trainer)

if __name__ == "__main__":
    process.main(work)
