"""What the rewards of an rlvr section are made from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.base.secrets import redact
from pipelines.contract.catalogue import card, load
from pipelines.contract.provenance import Provenance
from pipelines.recipe.model_path import is_stage_name
from pipelines.recipe.slots import terms_of
from pipelines.recipe.stage_kind import Node
from pipelines.rlvr import reward_models

SLOTS = ("reward", "shaping", "advantage", "credit", "providers")
"""Where something may be paid; only rewards are asked that do not say so themselves."""


def rewards(node: Node) -> Iterator[Provenance]:
    """Everything that the stage pays for, in the order of its slots."""
    for slot in SLOTS:
        spec = getattr(node.settings, slot)
        for part in spec if isinstance(spec, list) else [spec]:
            for _, each in terms_of(slot, part):
                if not each.get("terms"):
                    yield from _of_part(node, slot, each)


def _of_part(node: Node, slot: str, part: dict[str, Any]) -> Iterator[Provenance]:
    name, room = str(part.get("kind")), f"rlvr.{slot}"
    title = f"{slot}: {name}"
    stated = card(load(room, name)).provenance
    judges = reward_models.declared(room, name, "language_models")
    judge = part.get("judge") or (judges and (part.get("path") or part.get("model")))
    if isinstance(judge, dict):
        judge = judge.get("model") or judge.get("path")
    if stated:
        yield Provenance(title, stated, redact(judge) if judge else "")
    if stated or slot != "reward":
        return
    scorers = reward_models.declared(room, name, "reward_models")
    if scorers:
        for setting in scorers:
            value = part.get(setting)
            yield from (_of_model(node, title, str(model)) for model in (value if isinstance(value, list) else [value]))
    elif judge:
        yield Provenance(title, ("judge",), redact(judge))
    else:
        yield Provenance(title, ("model",) if reward_models.declared(room, name, "model_paths") else ("rule",))


def _of_model(node: Node, title: str, model: str) -> Provenance:
    """A reward model's score is made from what the reward model learned from."""
    if not is_stage_name(model):
        return Provenance(title, ("reward model",), redact(model))
    scorer = node.recipe.node(model)
    sources = list(scorer.kind.provenance(scorer))
    made_from = tuple(dict.fromkeys(source for each in sources for source in each.made_from))
    return Provenance(title, made_from, "; ".join(f"{model}, {each.part}, {each.detail}" for each in sources))
