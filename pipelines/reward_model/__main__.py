"""`python -m pipelines.reward_model WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.reward_model.base import RewardTrainer
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.reward_model.steps import StepTrainer
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's reward_model section on its pairs or labelled steps, from the model of another stage or the recipe's own."""
    report = Report(folder, committed=True)
    settings = RewardModel.model_validate(job["settings"]["reward_model"])
    kind: type[RewardTrainer] = Trainer if settings.step_labels is None else StepTrainer
    trainer = kind(
        settings,
        Model.model_validate(job["settings"]["model"]),
        start=process.model_of(job),
        data=Path(job["inputs"]["data"]),
        out=folder / "out",
        work=folder,
        report=report,
        seed=job["seed"],
    )
    metrics = trainer.run()
    report.close()
    return metrics


if __name__ == "__main__":
    process.main(work)
