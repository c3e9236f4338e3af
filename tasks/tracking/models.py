"""Checkpoints in MLflow: LoggedModels with parameters, scores and a flavour that loads them, and versions in the registry."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import mlflow
from mlflow.entities import LoggedModelInput, LoggedModelOutput, Metric, Run

from pipelines.base.files import read_object
from pipelines.recipe.model_path import ADAPTER
from pipelines.recipe.stage_kind import BASE
from tasks.tracking.client import client, experiment, mlflow_errors
from tasks.tracking.names import clean
from tasks.tracking.registry import add_name
from tasks.tracking.time_budget import TrackerRejected

SIDE_FILES = ("MLmodel", "requirements.txt", "python_env.yaml", "conda.yaml", "components", "registered_model_meta")
"""What MLflow needs or leaves beside a model folder to load it; no part of the artifact."""
CANDIDATE = "candidate"
"""Alias of a registered model: its newest version. The promoted one has an alias too (`tasks.tracking.registry`)."""


@mlflow_errors()
def store(
    run_id: str,
    artifact: Path,
    stage: str,
    *,
    upload_models: bool,
    tags: dict[str, str],
    params: dict[str, str],
    steps: dict[str, int],
    allow: Callable[[int], None] = lambda size: None,
) -> dict[str, str | None]:
    """Put a finished stage's files under its run, and its `model/` and `base/` into LoggedModels. Safe to repeat.

    Args:
        params: parameters of the trained checkpoint.
        steps: checkpoint name → optimizer steps that it has had.
        allow: told the bytes of each upload before it starts.

    Returns:
        checkpoint name (the stage, or "base") → LoggedModel id.
    """
    to = client()
    run = to.get_run(run_id)
    ids: dict[str, str | None] = {}
    known = to.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
    ready_models = {
        m.tags.get("whetstone.checkpoint"): m.model_id for m in known if getattr(m.status, "name", "") == "READY"
    }
    for name, path in (("base", artifact / "base"), (stage, artifact / "model")):
        if not path.is_dir():
            continue
        if name in ready_models:
            ids[name] = ready_models[name]
            continue
        model_tags = {"whetstone.checkpoint": name, "whetstone.step": str(steps.get(name, 0)), **tags}
        model_tags |= {} if upload_models else {"whetstone.path": str(path)}
        model = to.create_logged_model(
            run.info.experiment_id, name=model_name(_called(run, name)), source_run_id=run_id, tags=model_tags,
            model_type=name, params=params if name == stage else {k: v for k, v in params.items() if k.startswith("model.")},
        )  # fmt: skip
        if upload_models:
            allow(size_of(path))
            to.log_model_artifacts(model.model_id, str(path))
            _add_flavour(model.model_id, path)
        to.finalize_logged_model(model.model_id, "READY")
        ids[name] = model.model_id
    known_outputs = {m.model_id for m in (run.outputs.model_outputs if run.outputs else [])}
    outputs = [LoggedModelOutput(m, steps.get(n, 0)) for n, m in ids.items() if m and m not in known_outputs]
    if outputs:
        to.log_outputs(run_id, outputs)
    for path in sorted(artifact.iterdir()):
        if path.is_dir() and (path.name in ("model", "base") or (path.name == ADAPTER and not upload_models)):
            continue
        allow(size_of(path))
        if path.is_dir():
            to.log_artifacts(run_id, str(path), f"artifact/{path.name}")
        else:
            to.log_artifact(run_id, str(path), "artifact")
    return ids


def _called(run: Run, checkpoint: str) -> str:
    """Recipe and stage of a checkpoint that a stage's run made; of the base that it started from recipe and "base"."""
    tags = run.data.tags
    stage = BASE if checkpoint == BASE else tags.get("whetstone.stage") or checkpoint
    return f"{tags.get('whetstone.recipe') or run.info.run_name}-{stage}"


def model_name(text: str) -> str:
    """A LoggedModel's name: MLflow takes neither dots nor slashes in it.

    >>> model_name("sft-qwen2.5/base-sft")
    'sft-qwen2_5_base-sft'
    """
    return re.sub(r"[^\w-]", "_", text)[:250]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what vanishes while they are counted (a finished download moves) is left out."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _add_flavour(model_id: str, folder: Path) -> None:
    """Upload what lets `mlflow.transformers.load_model` and `mlflow models serve` load the model folder.

    Written by hand: MLflow's own saving refuses folders with this version of transformers, and would copy the weights. The
    tokenizer's files are there twice, because MLflow looks for them in a folder of their own.
    """
    config = read_object(folder / "config.json", architectures=list) or {}
    tokenizer = read_object(folder / "tokenizer_config.json", tokenizer_class=str) or {}
    if not config.get("architectures") or not tokenizer:
        return
    with tempfile.TemporaryDirectory() as scrap:
        side = Path(scrap)
        model_type, tokenizer_type = (
            config["architectures"][0],
            tokenizer.get("tokenizer_class", "PreTrainedTokenizerFast"),
        )
        _write_mlmodel(side, model_id, model_type, tokenizer_type)
        (side / "components" / "tokenizer").mkdir(parents=True)
        for path in folder.iterdir():
            names = ("tokenizer", "special_tokens", "vocab", "merges", "added_tokens", "chat_template")
            if path.is_file() and path.name.startswith(names):
                shutil.copy2(path, side / "components" / "tokenizer" / path.name)
        for name in SIDE_FILES:
            if (folder / name).exists() and (side / name).is_file():  # the model's own file of that name stays
                (side / name).unlink()
        client().log_model_artifacts(model_id, str(side))


def _write_mlmodel(folder: Path, model_id: str, model_type: str, tokenizer_type: str) -> None:
    from mlflow.models import Model, ModelSignature
    from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA
    from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv

    transformers = metadata.version("transformers")  # asked of the package, because importing it takes seconds
    torch = metadata.version("torch")
    requirements = [f"mlflow=={mlflow.__version__}", f"transformers=={transformers}", f"torch=={torch}"]
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n")
    _PythonEnv.current().to_yaml(str(folder / "python_env.yaml"))
    _mlflow_conda_env(path=str(folder / "conda.yaml"), additional_pip_deps=requirements[1:])
    model = Model(
        artifact_path=f"models:/{model_id}", model_id=model_id, metadata={"task": "llm/v1/chat"},
        signature=ModelSignature(inputs=CHAT_MODEL_INPUT_SCHEMA, outputs=CHAT_MODEL_OUTPUT_SCHEMA),
    )  # fmt: skip
    about = {
        "task": "text-generation", "instance_type": "TextGenerationPipeline", "framework": "pt", "model_binary": ".",
        "pipeline_model_type": model_type, "tokenizer_type": tokenizer_type, "components": ["tokenizer"],
        "inference_task": "llm/v1/chat", "transformers_version": transformers, "code": None,
    }  # fmt: skip
    model.add_flavor("transformers", **about)
    model.add_flavor(
        "python_function", loader_module="mlflow.transformers", python_version=_PythonEnv.current().python,
        env={"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
    )  # fmt: skip
    model.save(str(folder / "MLmodel"))


@mlflow_errors()
def external_base(experiment_name: str, name: str) -> str:
    """LoggedModel of a base model that no run made (a hub name or a folder), by reference; the same one each time."""
    to = client()
    experiment_id = experiment(experiment_name)
    for model in to.search_logged_models([experiment_id], "tags.`whetstone.checkpoint` = 'base'"):
        if model.tags.get("whetstone.base") == name:
            return model.model_id
    tags = {"whetstone.checkpoint": "base", "whetstone.base": name, "whetstone.step": "0", "whetstone.path": name}
    model = to.create_logged_model(
        experiment_id, name=model_name(f"base-{name[-200:]}"), tags=tags, params={"model.path": name}, model_type="base"
    )
    to.finalize_logged_model(model.model_id, "READY")
    return model.model_id


def model_of(checkpoint: str, *, run_id: str | None = None, model_id: str | None = None) -> tuple[str, int] | None:
    """(LoggedModel id, optimizer steps) of a checkpoint: that id, or the one that a run made; None where the store has none.

    Raises:
        TrackerUnavailable: the store does not answer.
    """
    try:
        with mlflow_errors():
            to = client()
            if model_id is None and run_id is not None:
                run = to.get_run(run_id)
                models = to.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
                model = next((m for m in models if m.tags.get("whetstone.checkpoint") == checkpoint), None)
            else:
                model = to.get_logged_model(model_id) if model_id is not None else None
    except TrackerRejected:  # made in another store, or deleted
        return None
    return None if model is None else (model.model_id, int(model.tags.get("whetstone.step") or 0))


@mlflow_errors()
def link_inputs(run_id: str, model_ids: list[str]) -> None:
    """Models that a run reads, each once."""
    to = client()
    run = to.get_run(run_id)
    known = {m.model_id for m in (run.inputs.model_inputs if run.inputs else [])}
    unlinked = [LoggedModelInput(m) for m in dict.fromkeys(model_ids) if m not in known]
    if unlinked:
        to.log_inputs(run_id, models=unlinked)


@mlflow_errors()
def link_scores(
    run_id: str, model_id: str, time_ms: int, datasets: dict[str, str], scores: dict[str, dict[str, float]]
) -> None:
    """Scores of a checkpoint, linked to its LoggedModel and to the benchmark: `TASK/METRIC` in every run and on every model.

    Args:
        time_ms: of the measurement, the same at every attempt, so that nothing is logged twice.
        datasets: task → digest of its questions.
        scores: task → metric → value.
    """
    metrics = [
        Metric(clean(f"{task}/{name}"), value, time_ms, 0, model_id=model_id, dataset_name=task,
               dataset_digest=datasets[task], run_id=run_id)
        for task, by_name in scores.items() for name, value in by_name.items()
    ]  # fmt: skip
    client().log_batch(run_id, metrics=metrics)


@mlflow_errors()
def register(model_id: str, name: str, tags: dict[str, str], description: str = "") -> str:
    """A new version of a registered model, alias `candidate`; returns the version. The same model is registered once."""
    to = client()
    about = (
        f"The last checkpoints of the recipe {tags.get('whetstone.recipe', name)}, one version for each pipeline run."
    )
    add_name(name, about)
    for version in to.search_model_versions(f"name='{name}'"):
        if getattr(version, "model_id", None) == model_id or version.tags.get("whetstone.model_id") == model_id:
            return str(version.version)
    source = to.get_logged_model(model_id)
    version = to.create_model_version(
        name, source=f"models:/{model_id}", run_id=source.source_run_id, model_id=model_id,
        tags={**tags, "whetstone.model_id": model_id}, description=description or None,
    )  # fmt: skip
    to.set_registered_model_alias(name, CANDIDATE, str(version.version))
    return str(version.version)
