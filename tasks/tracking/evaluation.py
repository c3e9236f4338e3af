"""An evaluation in MLflow: a run for each checkpoint, with its scores linked to the model and to the benchmarks."""

from __future__ import annotations

from pathlib import Path

from tasks.tracking import benchmarks
from tasks.tracking.client import client, dataset_inputs, mlflow_errors
from tasks.tracking.models import link_inputs, link_scores

EVALUATION_PAGE = {"mlflow.runType": "genai_evaluate"}
"""Lists a run on MLflow's page of evaluation runs, where two of them are put side by side."""


@mlflow_errors()
def record_evaluation(run_id: str, artifact: Path, models: dict[str, str | None], time_ms: int) -> dict[str, str]:
    """Link the evaluation stage's run to what it evaluated and on what; a run of its own for each checkpoint. Safe to repeat.

    Args:
        artifact: the evaluation stage's.
        models: checkpoint → LoggedModel id, None where the store has none.
        time_ms: when it was measured.

    Returns:
        checkpoint → id of its run.
    """
    to = client()
    results, datasets = benchmarks.results(artifact), benchmarks.datasets(artifact)
    inputs = dataset_inputs(datasets)
    if inputs:
        to.log_inputs(run_id, inputs)
    link_inputs(run_id, [m for m in models.values() if m])
    digests = {d["name"]: d["digest"] for d in datasets}
    runs = {}
    for checkpoint, by_task in results["evaluation"].items():
        runs[checkpoint] = child = _checkpoint_run(run_id, checkpoint)
        if inputs:
            to.log_inputs(child, inputs)
        model_id = models.get(checkpoint)
        if model_id is not None:
            link_inputs(child, [model_id])
            digested = {task: digests.get(task, "") for task in by_task}
            link_scores(child, model_id, time_ms, digested, benchmarks.values(by_task))
        to.set_terminated(child, "FINISHED")
    return runs


def _checkpoint_run(run_id: str, checkpoint: str) -> str:
    """The run of a checkpoint's scores and answers below the evaluation's run, made where it is missing."""
    to = client()
    parent = to.get_run(run_id)
    wanted = f"tags.`mlflow.parentRunId` = '{run_id}' and tags.`whetstone.checkpoint` = '{checkpoint}'"
    for run in to.search_runs([parent.info.experiment_id], wanted, max_results=1):
        return run.info.run_id
    tags = {k: v for k, v in parent.data.tags.items() if k in ("whetstone.recipe", "whetstone.seed")}
    tags |= {
        "whetstone.kind": "checkpoint",
        "whetstone.checkpoint": checkpoint,
        "mlflow.parentRunId": run_id,
        **EVALUATION_PAGE,
    }
    name = f"{parent.info.run_name}: {checkpoint}"
    return to.create_run(parent.info.experiment_id, run_name=name, tags=tags).info.run_id
