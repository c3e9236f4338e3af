"""`python -m pipelines.sft WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.recipe.settings import Sft
from pipelines.sft.run import Trainer
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's sft section on its data, from the recipe's own model or the one of another stage."""
    start = job["inputs"].get("model")
    report = Report(folder, committed=True)
    trainer = Trainer(
        Sft.model_validate(job["settings"]["sft"]),
        Model.model_validate(job["settings"]["model"]),
        start=str(Path(start) / "model") if start else None,
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
