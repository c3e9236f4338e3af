"""The stage: load the models, merge their weights, write a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.merge import arithmetic
from pipelines.merge.settings import Merge
from pipelines.stage.report import Report


def run(
    settings: Merge, model: Model, *, folders: list[str], origin: str | None, out: Path, report: Report
) -> dict[str, float]:
    """Write `out/model`.

    Args:
        folders: of the models, in the order of their weights.
        origin: folder or hub name that differences are taken from; None where the method takes none.

    Raises:
        ModelError: two models differ in architecture, vocabulary or chat template.
    """
    tokenizer = models.load_tokenizer(folders[0], model)
    identity = models.template_identity(tokenizer)
    result = models.load_model(folders[0], model)
    weights: list[dict[str, Any]] = []
    for number, folder in enumerate([*folders, *([origin] if origin else [])]):
        where = f"merge.models.{number}" if number < len(folders) else "merge.origin"
        if models.template_identity(models.load_tokenizer(folder, model)) != identity:
            raise ModelError(where, "renders prompts differently from the first model", "Merge models of one template.")
        weights.append(_weights(folder, model))
        _check(where, weights[0], weights[-1])
        report.progress(number + 1, len(folders) + 1, "loading", unit="model")
    merged = dict(_merged(settings, weights[: len(folders)], weights[-1] if origin else None))
    with torch.no_grad():
        for name, tensor in result.state_dict().items():
            tensor.copy_(merged[name].reshape(tensor.shape).to(tensor.dtype))
    models.save_model(result, tokenizer, out / "model", {"stage": "merge", "method": settings.method})
    moved = sum(float((merged[n].double() - weights[0][n].double()).square().sum()) for n in merged) ** 0.5
    return {"models": float(len(folders)), "distance_from_first": moved}


def _weights(folder: str, model: Model) -> dict[str, Any]:
    """Name → tensor, float32: sums are rounded once, when the result is stored."""
    loaded = models.load_model(folder, model)
    return {name: t.detach().float() for name, t in loaded.state_dict().items()}


def _check(where: str, first: dict[str, Any], other: dict[str, Any]) -> None:
    different = [
        n for n in first.keys() | other.keys() if getattr(first.get(n), "shape", 0) != getattr(other.get(n), "shape", 1)
    ]
    if different:
        raise ModelError(
            where, f"{sorted(different)[0]} has another shape than in the first model, or is in one of them only."
        )


def _merged(settings: Merge, weights: list[dict[str, Any]], origin: dict[str, Any] | None) -> Any:
    factors = settings.weights or [1.0] * len(weights)
    shares = [w / sum(factors) for w in factors] if settings.method in ("linear", "slerp") else factors
    if settings.method == "linear":
        return arithmetic.linear(weights, shares)
    if settings.method == "slerp":
        return arithmetic.slerp(weights, shares)
    assert origin is not None
    if settings.method == "task_arithmetic":
        return arithmetic.task_arithmetic(weights, origin, shares, settings.scale)
    return arithmetic.ties(weights, origin, shares, settings.scale, settings.density)
