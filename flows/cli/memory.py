"""`whetstone plan --memory`: a table of what each stage that trains or samples needs, and the settings that lower it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.base.errors import ModelError, UserError, did_you_mean
from pipelines.recipe.read import Recipe
from pipelines.recipe.server import Serve, Server
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.stage_checks import processes
from pipelines.recipe.stage_kind import Node
from tasks import machine
from tasks.preflight import check as preflight
from tasks.preflight import levers, memory, step_time

PARTS = (
    "process",
    "weights",
    "gradients",
    "optimizer",
    "commit",
    "activations",
    "offloaded",
    "logits",
    "packed",
    "cache",
    "kept",
)


@dataclass(frozen=True)
class Machine:
    """What is planned for."""

    device: memory.Device
    limit: int
    """Bytes of one GPU, or of the machine without one."""
    host: int | None
    """Bytes of the machine's own memory; None where it is not this machine."""
    card: tuple[str, step_time.Card] | None = None

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        gpus = machine.gpu_bytes()
        device = memory.Device(bool(gpus), machine.cpu_flags() >= memory.AVX512, max(1, len(gpus)))
        return cls(device, min(gpus) if gpus else machine.memory_bytes(), machine.memory_bytes())

    @classmethod
    def of(cls, gpus: str) -> Machine:
        """Another one, as `--gpus` names it: 8xH100, or 8x80 for eight GPUs of 80 GB.

        Raises:
            UserError: it is neither.
        """
        count, _, which = gpus.partition("x")
        if not count.isdigit() or int(count) < 1 or not which:
            raise UserError(
                "--gpus", f"{gpus} is not a number of GPUs and their kind", "Write 8xH100, or 8x80 for 80 GB each."
            )
        try:
            size, card = float(which) * 1e9, None
        except ValueError:
            card = step_time.named(which)
            if card is None:
                near = did_you_mean(which, step_time.CARDS)
                raise UserError(
                    "--gpus", f"{which} is no GPU known here", f"{near} Or write their GB: {count}x80."
                ) from None
            size = card[1].memory
        return cls(memory.Device(gpu=True, cards=int(count)), int(size), None, card)


def show(
    recipe: Recipe, stages: list[str], as_json: bool, *, limit: float | None = None, prompt_tokens: int | None = None,
    gpus: str | None = None, config: str | None = None,
) -> int:  # fmt: skip
    """Print the plan; 1 where a stage needs more than the limit.

    Args:
        stages: those asked for; curation, merges and evaluations are left out.
        limit: GB (10^9 bytes) instead of a GPU's, or this machine's, memory.
        prompt_tokens: length of a prompt, where the recipe has no bound.
        gpus: another machine than this one.
        config: a config.json, or its folder, whose sizes are planned instead of those of the recipe's model.

    Raises:
        ModelError: the sizes of the model cannot be read.
    """
    shape = preflight.shape_of(recipe, config)
    if shape is None:
        raise ModelError(
            "model.path",
            "the sizes of this model are not on this machine",
            "Give its configuration with --config FOLDER, or plan after a download.",
        )
    planned = [node for node in recipe.nodes() if node.name in stages and memory.known(node)]
    if not planned:
        raise UserError("plan --memory is about stages that train or sample here, and none is among the chosen ones.")
    target = Machine.of(gpus) if gpus else Machine.here()
    available = int(limit * 1e9) if limit else target.limit
    plans = [_planned(node, shape, prompt_tokens, target, available) for node in planned]
    if as_json:
        print(json.dumps({"limit": available, "stages": plans}, indent=1))
    else:
        for body in plans:
            _table(body, available, target)
    return int(any(body["peak"] > available or _over_host(body, target) for body in plans))


def _planned(
    node: Node, shape: memory.Shape, prompt_tokens: int | None, target: Machine, available: int
) -> dict[str, Any]:
    needs = memory.of_stage(node, shape, prompt_tokens=prompt_tokens, device=target.device)
    lower = levers.levers(node, shape, prompt_tokens=prompt_tokens, device=target.device)
    body = {
        **needs.body(),
        "processes": processes(node),
        "levers": [{"set": name, "peak": peak} for name, peak in lower],
    }
    if needs.peak > available:
        fits = levers.fitting(node, shape, available, prompt_tokens, target.device)
        body["fitting"] = {"set": fits[0], "peak": fits[1]} if fits else None
    elif target.card is not None:
        time = step_time.of_stage(node, shape, target.card[1], prompt_tokens=prompt_tokens)
        body["step_s"] = asdict(time) if time else None
        body["served_step_s"] = _served(node, shape, prompt_tokens, target)
    return body


def _served(node: Node, shape: memory.Shape, prompt_tokens: int | None, target: Machine) -> dict[str, float] | None:
    """A step whose rollouts vLLM servers draw, one on each GPU that the stage leaves free; None where none is free or it has servers."""
    section, idle = node.settings, min(64, target.device.cards - processes(node))
    if target.card is None or not isinstance(section, Rlvr) or section.sampler is not None or idle < 1:
        return None
    served = section.model_copy(update={"sampler": Server(serve=Serve(count=idle))})
    stage = replace(node.stage, settings=served)
    time = step_time.of_stage(replace(node, stage=stage), shape, target.card[1], prompt_tokens=prompt_tokens)
    return {"servers": idle, **asdict(time)} if time else None


def _over_host(body: dict[str, Any], target: Machine) -> bool:
    """Whether the stage's processes together hold more than the machine's own memory."""
    return target.host is not None and target.device.gpu and body["host"] * body["processes"] > target.host


def _table(body: dict[str, Any], available: int, target: Machine) -> None:
    """One stage."""
    where = f"each of {body['processes']} processes" if body["processes"] > 1 else "one process"
    print(f"{body['stage']}: at most {_gigabytes(body['peak'])} in {where}")
    for part in PARTS:
        if body[part]:
            print(
                f"  {part:<12} {_gigabytes(body[part]):>9}{'  on the host' if body['gpu'] and part in ('commit', 'offloaded') else ''}"
            )
    print("  peak in " + max(body["phases"], key=body["phases"].__getitem__))
    if body["levers"]:
        best = body["levers"][0]
        print(f"  largest saving: --set '{best['set']}' leaves {_gigabytes(best['peak'])}")
    if body["peak"] > available:
        fits = body["fitting"]
        sets = " ".join(f"--set '{each}'" for each in fits["set"]) if fits else ""
        fix = (
            f"enough: {sets} leaves {_gigabytes(fits['peak'])}"
            if fits
            else "no settings are enough: use a smaller model"
        )
        print(f"  over the limit of {_gigabytes(available)}; {fix}")
    if _over_host(body, target):
        assert target.host is not None
        print(
            f"  its processes hold {_gigabytes(body['host'] * body['processes'])} of the host's {_gigabytes(target.host)}"
        )
    if body.get("step_s") and target.card is not None:
        parts = {
            name: f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}" for name, seconds in body["step_s"].items()
        }
        decoding = f" and {parts['decoding']} s of decoding" if body["step_s"]["decoding"] else ""
        print(f"  a step on {target.card[0]} takes roughly {parts['training']} s of training{decoding}")
    if (served := body.get("served_step_s")) and served["decoding"] < body["step_s"]["decoding"]:
        name = f"{body['stage']}.sampler={{serve: {{count: {served['servers']}}}}}"
        print(f"  with vLLM on the other GPUs (--set '{name}') decoding takes roughly {served['decoding']:.1f} s")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
