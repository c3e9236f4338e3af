"""`whetstone plan --memory`: a table of what each stage that trains or samples needs, and the settings that lower it."""

from __future__ import annotations

import json
from typing import Any

from pipelines.base.errors import ModelError, UserError
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import Node
from tasks import machine
from tasks.preflight import check as preflight
from tasks.preflight import memory

PARTS = ("process", "weights", "gradients", "optimizer", "commit", "activations", "logits", "packed", "cache", "kept")


def show(recipe: Recipe, stages: list[str], as_json: bool, limit: float | None, prompt_tokens: int | None) -> int:
    """Print the plan; 1 where a stage needs more than the limit.

    Args:
        stages: those asked for; curation, merges and evaluations are left out.
        limit: GB (10^9 bytes) instead of this machine's memory.
        prompt_tokens: length of a prompt, where the recipe has no bound.

    Raises:
        ModelError: the sizes of the model cannot be read.
    """
    shape = preflight.shape_of(recipe)
    if shape is None:
        raise ModelError(
            "model.path", "the sizes of this model are not on this machine; give a folder, or plan after a download."
        )
    planned = [node for node in recipe.nodes() if node.name in stages and memory.known(node)]
    if not planned:
        raise UserError("plan --memory is about stages that train or sample, and none is among the chosen ones.")
    gpus = machine.gpu_bytes()
    available = int(limit * 1e9) if limit else (min(gpus) if gpus else machine.memory_bytes())
    device = memory.Device(gpu=bool(gpus), avx512=machine.cpu_flags() >= memory.AVX512)
    plans = [_planned(node, shape, prompt_tokens, device) for node in planned]
    if as_json:
        print(json.dumps({"limit": available, "stages": plans}, indent=1))
    else:
        for body in plans:
            _table(body, available)
    return int(any(body["peak"] > available for body in plans))


def _planned(node: Node, shape: memory.Shape, prompt_tokens: int | None, device: memory.Device) -> dict[str, Any]:
    needs = memory.of_stage(node, shape, prompt_tokens=prompt_tokens, device=device)
    levers = memory.levers(node, shape, prompt_tokens=prompt_tokens, device=device)
    return {**needs.body(), "levers": [{"set": name, "peak": peak} for name, peak in levers]}


def _table(body: dict[str, Any], available: int) -> None:
    """One stage."""
    print(f"{body['stage']}: at most {_gigabytes(body['peak'])} in one process")
    for part in PARTS:
        if body[part]:
            print(f"  {part:<12} {_gigabytes(body[part]):>9}")
    print("  peak in " + max(body["phases"], key=body["phases"].__getitem__))
    if body["levers"]:
        best = body["levers"][0]
        print(f"  largest saving: --set '{best['set']}' leaves {_gigabytes(best['peak'])}")
    if body["peak"] > available:
        enough = [lever["set"] for lever in body["levers"] if lever["peak"] <= available]
        fix = (
            f"enough by itself: {enough[-1]}"
            if enough
            else "no single setting is enough: combine them, or use a smaller model"
        )
        print(f"  over the limit of {_gigabytes(available)}; {fix}")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
