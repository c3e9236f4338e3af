"""A step's rollouts by the source of their problems, so that a source that is forgotten while another is learned is seen."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipelines.data.records import Stop
from pipelines.rlvr.common.source_labels import source_labels
from pipelines.rlvr.diagnostics import Outcome

MOST = 50
"""Sources; of more nothing is shown."""


def of_sources(outcomes: Sequence[Outcome], sources: Collection[str]) -> dict[str, float]:
    """`source/NAME/...` of every source of the split: shares of the step, means over its rollouts; of one that the step drew nothing of,
    its shares alone.

    Args:
        outcomes: of everything sampled in the step.
        sources: of the split; of one alone, or of more than `MOST`, nothing is shown.
    """
    if not 1 < len(sources) <= MOST:
        return {}
    metrics: dict[str, float] = {}
    tokens = sum(each.sampled_count for each in outcomes)
    for source, label in source_labels(sorted(sources)).items():
        rows = [each for each in outcomes if each.source == source]
        drawn = sum(each.sampled_count for each in rows)
        shown = {"share": len(rows) / max(1, len(outcomes)), "token_share": drawn / max(1, tokens)}
        if rows:
            shown["length_mean"] = drawn / len(rows)
            shown["truncated_share"] = sum(each.stop == Stop.LENGTH for each in rows) / len(rows)
        if scored := [each for each in rows if each.score is not None]:
            shown["reward_mean"] = sum(float(each.score or 0) for each in scored) / len(scored)
            shown["correct"] = sum(bool(each.correct) for each in scored) / len(scored)
        metrics |= {f"source/{label}/{name}": value for name, value in shown.items()}
    return metrics
