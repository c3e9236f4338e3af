"""`python -m pipelines.preference WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.preference.run import Trainer
from pipelines.preference.settings import Preference
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's preference section on its pairs, from the recipe's own model or the one of another stage."""
    report = Report(folder, committed=True)
    trainer = Trainer(
        Preference.model_validate(job["settings"]["preference"]),
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
