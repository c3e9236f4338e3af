"""`python -m pipelines.reward_model WORK`."""

from __future__ import annotations

from typing import Any

from pipelines.engine import loop
from pipelines.reward_model.base import RewardTrainer
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.reward_model.steps import StepTrainer
from pipelines.stage import process


def trainer(settings: RewardModel, *rest: Any, **named: Any) -> RewardTrainer:
    """The trainer on pairs or on labelled steps; arguments as in `Loop`."""
    kind: type[RewardTrainer] = Trainer if settings.step_labels is None else StepTrainer
    return kind(settings, *rest, **named)


work = loop.work("reward_model", RewardModel, trainer)

if __name__ == "__main__":
    process.main(work)
