"""`python -m pipelines.rlvr WORK`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import reward_models
from pipelines.rlvr.train import Trainer
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's rlvr section, on its data, from the model of another stage or the recipe's own."""
    rank = int(os.environ.get("RANK", "0"))
    report = Report(folder if rank == 0 else folder / f"rank{rank}", committed=True)
    trainer = Trainer(
        Rlvr.model_validate(reward_models.with_folders(job["settings"]["rlvr"], job["inputs"])),
        Model.model_validate(job["settings"]["model"]),
        start=str(process.model_of(job)),
        data=Path(job["inputs"]["data"]),
        samples=Path(job["inputs"]["samples"]) if job["inputs"].get("samples") else None,
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
