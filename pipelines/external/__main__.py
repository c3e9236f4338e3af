"""`python -m pipelines.external WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.external.run import run
from pipelines.external.settings import External
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's external section on its data, from the model of another stage or the recipe's own."""
    settings = External.model_validate(job["settings"]["external"])
    report = Report(folder)
    loading = Model.model_validate(job["settings"]["model"])
    metrics = run(settings, loading, job, start=str(process.model_of(job)), work=folder, report=report)
    report.close()
    return metrics


if __name__ == "__main__":
    process.main(work)
