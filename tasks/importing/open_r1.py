"""An open-r1 recipe as one of ours: TRL's fields, with rewards by name, a system prompt and mixtures of data sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tasks.importing import trl
from tasks.importing.draft import Draft
from tasks.importing.table import Config, Field, tables

FORM = r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>"
"""What `format` asks for."""
REWARDS: dict[str, dict[str, Any]] = {
    "accuracy": {"kind": "verifier"},
    "format": {"kind": "verifier", "name": "format", "verifier": "regex", "answer": FORM, "info": {"flags": "s"}},
    "code": {"kind": "verifier", "name": "code", "verifier": "python"},
    "binary_code": {"kind": "verifier", "name": "code", "verifier": "python"},
}
"""open-r1's rewards → ours."""
OVERLONG = "soft_overlong_punishment"
"""A reward there, a shaping part here."""

OWN = (
    "reward_funcs",
    "dataset_mixture",
    "system_prompt",
    "dataset_prompt_column",
    "benchmarks",
    "chat_template",
    "soft_punish_cache",
    "code_provider",
)
"""Fields by which a recipe of theirs is told from a TRL configuration."""


def fields(method: str) -> list[Field]:
    """The table of open-r1's `grpo.py` or `sft.py`."""
    own = [*tables("open_r1")["both"], *tables("open_r1")[method]]
    known = {field.key for field in own}
    shared = (field for field in trl.fields(method) if field.key not in known)
    older = defaults(method)
    return [*own, *(replace(each, default=older[each.key]) if each.key in older else each for each in shared)]


def defaults(method: str) -> dict[str, Any]:
    """The defaults of the TRL that it pins, where those of TRL 1.x are others."""
    return {**tables("open_r1")["defaults"]["both"], **tables("open_r1")["defaults"][method]}


def build(config: Config, method: str) -> Draft:
    """The recipe of an open-r1 recipe.

    Raises:
        UserError: a field has a value that cannot be read, or one without which there is no run is missing.
    """
    draft = trl.start(config, method)
    data(draft, method)
    trl.optimizer(draft)
    if method == "grpo":
        questions(draft)
        trl.rewards(draft, named(draft))
        trl.rlvr(draft)
    else:
        trl.sft(draft)
    trl.lora(draft)
    draft.copy()
    draft.finish()
    return draft


def data(draft: Draft, method: str) -> None:
    """One data set, or a mixture."""
    config = draft.config
    mixture = config.take("dataset_mixture")
    if not mixture:
        trl.sources(draft, method)
        return
    entries = [each for each in mixture.get("datasets") or [] if isinstance(each, dict)]
    listed = [trl.source(each, "dataset_mixture.datasets") for each in entries] or [
        trl.source({}, "dataset_mixture.datasets")
    ]
    trl.place_sources(draft, listed, method, "dataset_mixture")
    if any(each.get("weight") not in (None, 1, 1.0) or each.get("columns") for each in entries):
        draft.leave(
            "dataset_mixture", "weights there are shares of a data set's rows, and columns are chosen beforehand",
            "Set size of a source, or sft.mixture.",
        )  # fmt: skip
    if config.has("dataset_name"):
        draft.map("dataset_name", "", "the mixture decides")


def questions(draft: Draft) -> None:
    """The column of the questions, and what stands before each."""
    config = draft.config
    column, system = config.take("dataset_prompt_column"), config.take("system_prompt")
    for each in draft.recipe["curate"]["sources"]:
        each["columns"] = {"prompt": column}
        if system:
            each["system"] = system
    draft.map("dataset_prompt_column", "curate.sources")
    if system:
        draft.map("system_prompt", "curate.sources")


def named(draft: Draft) -> dict[str, dict[str, Any]]:
    """The rewards that have a counterpart; the overlong penalty becomes a shaping part."""
    config = draft.config
    names = config.take("reward_funcs")
    limit, buffer = config.take("max_completion_len"), config.take("soft_punish_cache")
    if names and OVERLONG in names and limit == config.take("max_completion_length") and 0 < buffer <= limit:
        position = names.index(OVERLONG)
        weights = config.take("reward_weights") or [1.0] * len(names)
        factor = float(weights[position]) if position < len(weights) else 1.0
        draft.put(
            ".shaping",
            [{"kind": "soft_overlong", "buffer": buffer / limit, "factor": factor}],
            "max_completion_len",
            "soft_punish_cache",
        )
        config.values[config.spelling["reward_funcs"]] = [name for name in names if name != OVERLONG]
        if config.has("reward_weights"):
            config.values[config.spelling["reward_weights"]] = [
                w for place, w in enumerate(weights) if place != position
            ]
    return REWARDS
