"""`python -m pipelines.sample WORK`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.recipe.search_models import scorers
from pipelines.sample.comparisons import compare
from pipelines.sample.run import run
from pipelines.sample.settings import Sample
from pipelines.sample.steps import label_steps
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's sample section, on its data, with the model of another stage or the recipe's own."""
    report = Report.of_rank(folder)
    settings = Sample.model_validate(job["settings"]["sample"])
    model = Model.model_validate(job["settings"]["model"])
    positions: dict[str, Any] = {
        "start": _start(settings, model, job),
        "guide": f"{job['inputs']['guidance.base']}/model" if "guidance.base" in job["inputs"] else None,
        "data": Path(job["inputs"]["data"]),
        "out": folder / "out",
    }
    if settings.comparisons is not None:
        positions.pop("guide")
        metrics = compare(settings, model, report=report, seed=job["seed"], **positions)
    elif settings.step_labels is not None:
        metrics = label_steps(settings, model, report=report, seed=job["seed"], **positions)
    else:
        metrics = run(
            settings,
            model,
            report=report,
            seed=job["seed"],
            reward_model=f"{job['inputs']['reward_model']}/model" if "reward_model" in job["inputs"] else None,
            reference=f"{job['inputs']['reference']}/model" if "reference" in job["inputs"] else None,
            scorer=scorers([settings.search] if settings.search else [], job["inputs"]).get(0),
            **positions,
        )
    report.close()
    return metrics


def _start(settings: Sample, model: Model, job: dict[str, Any]) -> str:
    """The model that is sampled; where an endpoint is asked, what counts tokens: the recipe's model, or the tokenizer of the data."""
    if settings.model is not None:
        return model.path or f"{job['inputs']['data']}/tokenizer"
    return str(process.model_of(job))


if __name__ == "__main__":
    process.main(work)
