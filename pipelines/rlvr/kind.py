"""RLVR as a kind of stage."""

from __future__ import annotations

import re
from typing import ClassVar

from pipelines.project import ROOT
from pipelines.recipe import check
from pipelines.recipe.graph import Node
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import SLOTS, terms_of
from pipelines.recipe.stage_kind import (
    DATA,
    MODEL,
    TEXT,
    TORCH,
    VERIFIERS,
    Kind,
    ModelFiles,
    Port,
    Reads,
    base_files,
    check_split,
    check_trained,
    data_environments,
    environment_settings,
    model_settings,
)


class RlvrKind(Kind):
    """A model trained on the rewards of its own rollouts."""

    name, settings, module, makes = "rlvr", Rlvr, "pipelines.rlvr", MODEL
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = rewards = methods = True
    headlines = ("reward/correct", "reward/mean", "rollout/length_mean", "policy/entropy")

    def reads(self, node: Node) -> Reads:
        """The chosen methods, and the environments that the data come from."""
        rl: Rlvr = node.settings
        model, in_key = model_settings(node)
        environments, any_environment = data_environments(node)
        reads = Reads(
            {"rlvr": resolve(rl), "model": model},
            in_key=in_key,
            models=base_files(node),
            modules=_methods(rl),
            environments=environments,
            any_environment=any_environment,
            environment_settings=environment_settings(node),
            verifies=True,
            libraries=(*VERIFIERS, *TEXT, *TORCH),
        )
        for number, provider in enumerate(rl.providers):
            if provider.get("path"):
                place = ("rlvr", "providers", number, "path")
                reads.models[f"providers.{number}"] = ModelFiles(provider["path"], place)
        return reads

    def check(self, node: Node) -> None:
        """The methods fit each other, and there is a model that can be sampled."""
        check_split(node, "rlvr.split", node.settings.split)
        check_trained(node)
        check.methods(node.settings)


def _methods(rl: Rlvr) -> list[str]:
    """Modules of the chosen methods, providers and monitors, and of those that may come by themselves."""
    modules = []
    for slot in SLOTS:
        spec = getattr(rl, slot)
        for part in spec if isinstance(spec, list) else [] if spec is None else [spec]:
            modules += [f"pipelines.rlvr.{slot}.{each.get('kind')}" for _, each in terms_of(slot, part)]
    modules += [f"pipelines.rlvr.providers.{part.get('kind')}" for part in rl.providers]
    for path in sorted((ROOT / "pipelines" / "rlvr" / "providers").glob("[a-z]*.py")):
        if re.search(r"^    automatic: .*= True$", path.read_text(), re.MULTILINE):
            modules.append(f"pipelines.rlvr.providers.{path.stem}")
    return modules + [f"pipelines.monitor.{rule.get('kind')}" for rule in rl.monitors]


KIND = RlvrKind()
