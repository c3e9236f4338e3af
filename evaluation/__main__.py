"""`python -m evaluation WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.run import checkpoints_of, run
from pipelines.contract.model_settings import Model
from pipelines.engine.ranks import Ranks
from pipelines.recipe.search_models import scorers
from pipelines.recipe.settings import Evaluate
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's evaluate section, on the checkpoints among its inputs."""
    ranks = Ranks.join()
    if not ranks.first:
        ranks.serve()
        return {}
    report = Report(folder)
    settings = Evaluate.model_validate(job["settings"]["evaluate"])
    metrics = run(
        settings,
        Model.model_validate(job["settings"]["model"]),
        checkpoints=checkpoints_of(job),
        out=folder / "out",
        report=report,
        seed=job["seed"],
        differences=job.get("differences"),
        guided=job.get("guided", ()),
        searched=job.get("searched", ()),
        scorers=scorers(settings.search or [], job["inputs"]),
        ranks=ranks,
    )
    ranks.end()
    report.close()
    return metrics


if __name__ == "__main__":
    process.main(work)
