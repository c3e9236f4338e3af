"""`python -m pipelines.merge WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.merge.run import run
from pipelines.merge.settings import Merge
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's merge section on the models among its inputs."""
    settings = Merge.model_validate(job["settings"]["merge"])
    report = Report(folder)
    metrics = run(
        settings,
        Model.model_validate(job["settings"]["model"]),
        folders=[str(process.model_of(job, label)) for label in job["models"]],
        origin=process.model_of(job, "origin") if settings.method in ("task_arithmetic", "ties") else None,
        out=folder / "out",
        report=report,
    )
    report.close()
    return metrics


if __name__ == "__main__":
    process.main(work)
