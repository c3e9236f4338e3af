"""Crops are paid by the regions that a question needs: correct, redundant or erroneous.

Presets: virl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.common.turn_rewards import add_to_turns, calls_of, scored_with_turns
from pipelines.verifiers.grounding import Place, iou

Weight = Annotated[float, Field(ge=0, le=1e3)]


@method(
    paper="2511.23031",
    title="From Illusion to Intention: Visual Rationale Learning for Vision-Language Reasoning",
    checked="reconstructed (three kinds of actions; what each is paid is assumed)",
)
class virl(Reward):
    """Adds to each turn what its crops are worth, beside what the environment pays.

    `info.rationales` lists the boxes that the question needs. A crop is correct where its IoU with one that no earlier crop has shown is at
    least `threshold`, and adds `weight` x the IoU; redundant where it shows again what a crop has shown, and subtracts `redundant`;
    erroneous otherwise, calls that the tool refuses included, and subtracts `erroneous`. With `gate` the answer of a row counts only where
    all rationales were shown: the right answer for the right visual reason. Each turn has its own reward, so an advantage of turns
    credits them apart. Problems without rationales get nothing.
    """

    pays_turns = reads_calls = keeps_score = True

    def __init__(
        self,
        *,
        threshold: Annotated[float, Field(gt=0, le=1)] = 0.5,
        weight: Weight = 0.5,
        redundant: Weight = 0.1,
        erroneous: Weight = 0.1,
        gate: bool = False,
    ) -> None:
        self.threshold, self.weight, self.gate = threshold, weight, gate
        self.costs = {"redundant": redundant, "erroneous": erroneous}

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        for row in scored_with_turns("virl", rows, problems):
            wanted = [tuple(map(float, box)) for box in row.asked(problems).info.get("rationales") or ()]
            if not wanted:
                continue
            turns = calls_of(row)
            kinds = kinds_of([call for calls in turns for call in calls], wanted, self.threshold)
            values = iter([self.weight * share if kind == "correct" else -self.costs[kind] for kind, share in kinds])
            add_to_turns(row, "virl", [sum(next(values) for _ in calls) for calls in turns])
            counts = {kind: float(sum(each == kind for each, _ in kinds)) for kind in ("correct", *self.costs)}
            row.components = {**row.components, **{f"crops/{kind}": count for kind, count in counts.items()}}
            if self.gate and counts["correct"] < len(wanted) and turns and not turns[-1]:
                paid = (row.turn_components or [{}])[-1].get("answer", 0.0)
                add_to_turns(row, "gate", [*[0.0] * (len(turns) - 1), -paid])


def kinds_of(calls: Sequence[Mapping[str, Any]], wanted: Sequence[Place], threshold: float) -> list[tuple[str, float]]:
    """Of each crop in order: correct, redundant or erroneous, and its largest IoU with a region.

    >>> crops = [{"name": "crop", "arguments": {"box": box}, "outcome": "ok"} for box in ([0, 0, 4, 4], [0, 0, 4, 4], [4, 0, 8, 4])]
    >>> kinds_of(crops, [(0, 0, 4, 4)], 0.5)
    [('correct', 1.0), ('redundant', 1.0), ('erroneous', 0.0)]
    """
    kinds: list[tuple[str, float]] = []
    left = set(range(len(wanted)))
    for call in calls:
        if call["name"] != "crop" or call["outcome"] != "ok":
            kinds.append(("erroneous", 0.0))
            continue
        box = tuple(map(float, call["arguments"]["box"]))
        shares = [iou(region, box) for region in wanted]
        new = max(left, key=lambda place: shares[place], default=None)
        if new is not None and shares[new] >= threshold:
            left.discard(new)
            kinds.append(("correct", shares[new]))
        else:
            kinds.append(("redundant" if max(shares) >= threshold else "erroneous", max(shares)))
    return kinds
