"""Settings that lower what a stage holds in memory, and which of them together are enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipelines.base.errors import UserError
from pipelines.recipe.settings import Rlvr, Sft
from pipelines.recipe.stage_checks import is_quantized
from pipelines.recipe.stage_kind import Node
from pipelines.reward_model.settings import RewardModel
from pipelines.sample.settings import Sample
from tasks.preflight import memory
from tasks.preflight.memory import CPU, Device, Shape

TRAINS_OTHERWISE = frozenset({"lora", "weights_dtype"})
"""Fields after whose change a stage trains something else; the others change its results by rounding at most."""


def levers(node: Node, shape: Shape, prompt_tokens: int | None = None, device: Device = CPU) -> list[tuple[str, int]]:
    """Settings that lower the stage's peak, as `--set` takes them, with the peak that each leaves, the largest lever first."""
    before = memory.of_stage(node, shape, prompt_tokens=prompt_tokens, device=device).peak
    peaks = [(name, peak) for name, _, peak in _changed(node, shape, prompt_tokens, device)]
    return sorted(((name, peak) for name, peak in peaks if peak < before), key=lambda lever: lever[1])


def fitting(
    node: Node, shape: Shape, limit: int, prompt_tokens: int | None = None, device: Device = CPU
) -> tuple[list[str], int] | None:
    """Settings that together bring the stage's peak to the limit, as `--set` takes them, and the peak; None where none do.

    The largest lever comes first, again and again; those after which a stage trains something else come last.
    """
    chosen: dict[str, str] = {}
    peak = memory.of_stage(node, shape, prompt_tokens=prompt_tokens, device=device).peak
    while peak > limit:
        lower = [each for each in _changed(node, shape, prompt_tokens, device) if each[2] < peak]
        if not lower:
            return None
        name, node, peak = min(lower, key=lambda each: (_field(each[0]) in TRAINS_OTHERWISE, each[2]))
        chosen[name.partition("=")[0]] = name
    return list(chosen.values()), peak


def _field(name: str) -> str:
    """
    >>> _field("sft.lora={rank: 16}")
    'lora'
    """
    return name.partition("=")[0].rpartition(".")[2]


def _changed(node: Node, shape: Shape, prompt_tokens: int | None, device: Device) -> Iterator[tuple[str, Node, int]]:
    """Of each setting that may be changed, what `--set` takes, the stage with it, and its peak; without those that are refused."""
    recipe, section = node.recipe, node.settings
    others = {
        f"{node.name}.{text}": replace(
            node, stage=replace(node.stage, settings=type(section).model_validate(section.model_dump() | change))
        )
        for text, change in _changes(node, prompt_tokens, device)
    }
    if recipe.model.dtype == "bfloat16" and recipe.model.weights_dtype == "float32":
        model = recipe.model.model_copy(update={"weights_dtype": "bfloat16"})
        others["model.weights_dtype=bfloat16"] = replace(node, recipe=recipe.model_copy(update={"model": model}))
    for name, other in others.items():
        try:
            other.kind.check(other)
        except UserError:
            continue
        yield name, other, memory.of_stage(other, shape, prompt_tokens=prompt_tokens, device=device).peak


def _changes(node: Node, prompt_tokens: int | None, device: Device) -> Iterator[tuple[str, dict[str, Any]]]:
    """Fields of the stage and other values that may lower its peak."""
    section = node.settings
    trains = not isinstance(section, Sample)
    if trains and section.lora is None:
        yield "lora={rank: 16}", {"lora": {"rank": 16}}
    if trains and not section.gradient_checkpointing:
        yield "gradient_checkpointing=true", {"gradient_checkpointing": True}
    elif trains and device.gpu and not section.activation_offload:
        yield "activation_offload=true", {"activation_offload": True}
    processes = device.cards - _server_cards(section)
    if trains and processes > section.processes and not is_quantized(section):
        yield f"processes={processes}", {"processes": processes}
    lowest = section.max_length if isinstance(section, Sft) else 1
    if isinstance(section, RewardModel):
        lowest = 2 * section.max_length
    half = max(lowest, section.micro_batch_tokens // 2)
    if half < section.micro_batch_tokens:
        yield f"micro_batch_tokens={half}", {"micro_batch_tokens": half}
    if isinstance(section, Rlvr | Sample):
        rows = memory.decoded_rows(node, prompt_tokens) // 2
        if rows >= 1:
            yield f"decode_rows={rows}", {"decode_rows": rows}
    if not isinstance(section, Sample) and section.gradient_sync == "update":
        yield "gradient_sync=pass", {"gradient_sync": "pass"}
    if isinstance(section, Rlvr) and section.sampler is not None and section.full_copy and section.processes > 1:
        yield "full_copy=false", {"full_copy": False}
    if isinstance(section, Rlvr) and section.cuda_graphs and device.gpu:
        yield "cuda_graphs=false", {"cuda_graphs": False}


def _server_cards(section: Any) -> int:
    """GPUs that the servers of a stage compute on."""
    sampler = getattr(section, "sampler", None)
    return sampler.serve.cards_together if sampler is not None and sampler.serve is not None else 0
