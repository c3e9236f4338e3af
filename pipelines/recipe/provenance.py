"""What rewards are made from, kept as metadata of a run: what the survey of inverse RL for language models (2507.13158) asks of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.contract.provenance import Provenance
from pipelines.recipe.source import Source, sources_of

if TYPE_CHECKING:
    from pipelines.recipe.stage_kind import Node

SCORE = "score"
"""What selections order completions by where they name nothing else."""


def of_labels(node: Node, made_from: str) -> Provenance:
    """Of a stage that learns from preferences or labels of its data: its loss, the sources, and who decided.

    Args:
        node: a stage with `loss`, `split` and the input `data`.
        made_from: what the labels are.
    """
    sources = dict.fromkeys(_described(node, source) for source in _sources(node))
    return Provenance(f"loss: {node.settings.loss.get('kind')}", (made_from,), "; ".join(sources))


def _sources(node: Node) -> Iterator[Source]:
    """Those whose records go to the split that the stage learns from."""
    for name in node.named("data"):
        for source in sources_of(node.recipe.node(name).settings):
            if source.splits is None or node.settings.split in source.splits:
                yield source


def _described(node: Node, source: Source) -> str:
    """Such as `pairs of drafts by rule`; of a file the name alone, as nothing here knows who decided."""
    if source.select is None:
        return Path(str(source.path or source.task)).name
    sampled = node.recipe.node(str(source.path))
    compared = getattr(sampled.settings, "comparisons", None) if source.select.kind == "preferred" else None
    by = source.select.by
    if compared is not None and compared.by != SCORE:
        by = "judge"
    elif source.select.pair == "demonstration":
        by = "demonstration"
    elif by == SCORE:
        by = "reward model" if sampled.named("reward_model") else "rule"
    return f"{source.select.kind} of {source.path} by {by}"
