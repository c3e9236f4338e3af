"""What the section `launch` must obey beside the types of its fields."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.recipe.launch import Launch
from pipelines.recipe.stage_checks import processes, processes_field
from pipelines.recipe.stage_kind import Node

OF_KIND = {
    **dict.fromkeys(("partition", "account", "options"), "slurm"),
    **{kind: kind for kind in ("kubernetes", "ray", "skypilot")},
}
"""Field → the only kind of launcher that reads it."""


def check(launch: Launch, nodes: Mapping[str, Node]) -> None:
    """Stages that are launched are stages of the recipe, and have what several machines or a job that is queued again need.

    Args:
        nodes: the recipe's stages by name.

    Raises:
        RecipeError: names the field and the fix.
    """
    _check_kind(launch)
    for number, option in enumerate(launch.options):
        try:
            shlex.split(option)
        except ValueError:
            raise RecipeError(f"launch.options.{number}", "a quote is not closed", "Close it.") from None
    for name, asked in launch.stages.items():
        field = f"launch.stages.{name}"
        if name not in nodes:
            raise RecipeError(field, "this recipe has no stage of this name", did_you_mean(name, nodes))
        node = nodes[name]
        if asked.nodes > 1 and processes_field(node) is None:
            raise RecipeError(
                f"{field}.nodes", f"a stage of the kind {node.kind.name} runs on one machine", "Leave it out."
            )
        if asked.nodes > 1 and launch.interface is None:
            raise RecipeError(
                "launch.interface",
                f"{name} has {asked.nodes} machines, which talk over a network",
                "Name its interface, such as ib0.",
            )
        if launch.kind == "slurm" and launch.requeue and asked.time is None:
            raise RecipeError(
                f"{field}.time",
                "a job without a time limit is never queued again",
                "Give the job one, or leave out launch.requeue.",
            )
        if launch.kind == "skypilot" and asked.gpus and (launch.skypilot is None or launch.skypilot.gpu is None):
            raise RecipeError(
                "launch.skypilot.gpu",
                f"{name} asks for GPUs, and SkyPilot knows them by kind",
                "Name it, such as H100.",
            )
        if 0 < asked.gpus < processes(node):
            raise RecipeError(
                f"{field}.gpus",
                f"{processes(node)} processes of {name} share {asked.gpus} GPUs",
                f"Ask for {processes(node)}, or lower {name}.{node.kind.processes_field}.",
            )


def _check_kind(launch: Launch) -> None:
    """No field is set that another scheduler's jobs have."""
    if launch.kind == "kubernetes" and launch.kubernetes is None:
        raise RecipeError(
            "launch.kubernetes",
            "this section is required with kind: kubernetes",
            "Add it, with image, claim and mount.",
        )
    for field, kind in OF_KIND.items():
        if kind != launch.kind and getattr(launch, field) != Launch.model_fields[field].get_default():
            raise RecipeError(
                f"launch.{field}",
                f"it is of kind: {kind}, and jobs are {launch.kind}'s",
                f"Leave it out, or set kind: {kind}.",
            )
