"""Where an rlvr section names reward models, judges, opponents or models to score with: stages of the recipe, or checkpoints by path.

It imports no method, so that reading a recipe stays fast.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.base.project import syntax_tree
from pipelines.contract import catalogue
from pipelines.contract.scorer import POLICY, REFERENCE
from pipelines.recipe.model_path import CLASSIFIER, architecture_of, is_stage_name
from pipelines.recipe.slots import SLOTS
from pipelines.recipe.stage_kind import MODEL, REWARD_MODEL, Place

DECLARED = {"reward_models": REWARD_MODEL, "language_models": MODEL, "model_paths": MODEL, "players": MODEL}
"""Attribute of a method's class that lists its settings with names of such models → what a stage so named makes."""
ROLES: dict[str, dict[str, str]] = {
    "model_paths": {POLICY: "the policy itself", REFERENCE: "the model that the run started from"},
    "players": {
        POLICY: "the policy itself",
        "past": "the policy with earlier weights",
        "random": "legal moves at random",
        "perfect": "the exact best player",
    },
}
"""What a setting in one of these may say beside, and what it means."""


@dataclass(frozen=True)
class Named:
    """A model that a setting names."""

    holder: Any
    """The mapping or list that holds the name."""
    key: str | int
    place: Place
    """In the section: ("reward", "terms", 0, "model")."""
    attribute: str
    """Of the method's class, which lists the setting."""

    @property
    def makes(self) -> str:
        """What a stage of this name must make."""
        return DECLARED[self.attribute]

    @property
    def value(self) -> str:
        """A stage's name, a path or a hub name."""
        return str(self.holder[self.key])

    @property
    def label(self) -> str:
        """What the input is called where it is a stage."""
        return ".".join(map(str, self.place))

    @property
    def is_stage(self) -> bool:
        """Whether it is a stage's name, and no path."""
        return not self.is_role and is_stage_name(self.value)

    @property
    def is_role(self) -> bool:
        """Whether it is none of these, such as the policy itself."""
        return bool(self.meaning)

    @property
    def meaning(self) -> str:
        """What it means where it is a role."""
        return ROLES.get(self.attribute, {}).get(self.value, "")

    def put(self, folder: str) -> None:
        """Write a folder in place of the name; an opponent keeps that as its own."""
        if self.attribute != "players":
            self.holder[self.key] = folder
        elif isinstance(self.holder, list):
            self.holder[int(self.key)] = {"player": folder, "name": self.value}
        else:
            name = self.holder.get("name") or self.value
            self.holder.update(player=folder, name=name)


def named(section: Mapping[str, Any]) -> Iterator[Named]:
    """The reward models, judges and models to score with that an rlvr section names.

    Args:
        section: its fields; values that are not as they should be are passed over, and refused elsewhere.
    """
    for slot in (*SLOTS, "providers"):
        spec = section.get(slot)
        parts = list(enumerate(spec)) if isinstance(spec, list) else [(None, spec)]
        listed = spec if slot == "reward" and isinstance(spec, list) else None
        for number, part in parts:
            if not isinstance(part, dict):
                continue
            where: Place = (slot,) if number is None else (slot, number)
            if listed is not None:
                where = (slot, "terms", number or 0)
            terms = part.get("terms")
            yield from _of_part(slot, where, part)
            for n, term in enumerate(terms if isinstance(terms, list) else []):
                if isinstance(term, dict):
                    yield from _of_part(slot, (*where, "terms", n), term)


def _of_part(slot: str, where: Place, part: dict[str, Any]) -> Iterator[Named]:
    for attribute in DECLARED:
        for setting in declared(f"rlvr.{slot}", str(part.get("kind")), attribute):
            value = part.get(setting)
            if isinstance(value, str):
                yield Named(part, setting, (*where, setting), attribute)
            for number, each in enumerate(value if isinstance(value, list) else []):
                if isinstance(each, str):
                    yield Named(value, number, (*where, setting, number), attribute)
                elif attribute == "players" and isinstance(each, dict) and isinstance(each.get("player"), str):
                    yield Named(each, "player", (*where, setting, number, "player"), attribute)


@cache
def declared(slot: str, name: str, attribute: str) -> tuple[str, ...]:
    """The settings that the class of a method lists in this attribute, read from its file without importing it."""
    where, path = catalogue.origin(slot, name), catalogue.source_file(slot, name)
    if where is None or path is None:
        return ()
    classes = [node for node in syntax_tree(path.read_text()).body if isinstance(node, ast.ClassDef)]
    for node in (line for each in classes if each.name == where.attribute for line in each.body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id == attribute
            and node.value
        ):
            return tuple(ast.literal_eval(node.value))
    return ()


def check(section: Mapping[str, Any]) -> None:
    """Local checkpoints that are named as reward models are some.

    Raises:
        RecipeError: one is a language model, or a judge is a reward model, or there is no such folder.
    """
    for each in named(section):
        if each.is_stage:
            continue
        architecture = architecture_of(each.value)
        classifies = architecture is not None and architecture.endswith(CLASSIFIER)
        if each.attribute in ("language_models", "players") and classifies:
            raise RecipeError(f"rlvr.{each.label}", f"{each.value} is a reward model, and a language model is asked.")
        if each.makes == REWARD_MODEL and architecture is not None and not classifies:
            raise RecipeError(
                f"rlvr.{each.label}",
                f"{each.value} is no reward model but {architecture}",
                "Name a stage of kind reward_model, or a checkpoint for sequence classification with one label.",
            )


def with_folders(section: dict[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """The section with the folders of stages in place of their names.

    Args:
        inputs: of the job: label → artifact.
    """
    for each in list(named(section)):
        if each.is_stage:
            each.put(f"{inputs[each.label]}/model")
    return section
