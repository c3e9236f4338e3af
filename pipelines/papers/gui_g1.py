"""GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents.

arXiv 2505.15810. Presets: gui_g1. Parts: record_weight (providers), gui_g1 (credit).

A weight of each problem, from a field of its record.

Harder records weigh more.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.provider import Provider, ProviderContext

COLUMNS = {
    "record_weight": Column(
        "B",
        "float32",
        Phase.ADVANTAGE,
        "a provider that reads the record",
        "What the problem weighs, 1 on average.",
        part=True,
        hint="Weigh the records: providers: [{kind: record_weight, field: NAME}].",
        span=(0.5, 2.0),
    ),
}


@method(
    paper="2505.15810",
    title="GUI-G1: a record's difficulty as the inverse of its target's relative size",
    checked="reconstructed (the map from size to weight)",
    makes=("record_weight",),
)
class record_weight(Provider):
    """(1 / size)^power over its mean in the split, size the record's `info` field of the name `field`; 1 where a record has none.

    Sizes are at least `smallest`. With `power` 1/2 the weights are milder; with -1 the field is a weight already, up to the scale.
    """

    info_fields: ClassVar[tuple[str, ...]] = ("field",)

    def __init__(
        self,
        *,
        field: Annotated[str, Field(min_length=1, max_length=200)] = "size",
        power: Annotated[float, Field(ge=-4, le=4)] = 1.0,
        smallest: Annotated[float, Field(gt=0)] = 1e-4,
    ) -> None:
        self.field, self.power, self.smallest = field, power, smallest

    def setup(self, context: ProviderContext) -> None:
        """Weigh the problems of the split."""
        raw = {number: self.raw(problem.info.get(self.field)) for number, problem in context.problems.items()}
        known = [weight for weight in raw.values() if weight is not None]
        mean = math.fsum(known) / len(known) if known else 1.0
        self.weights = {number: 1.0 if weight is None else weight / mean for number, weight in raw.items()}

    def raw(self, size: Any) -> float | None:
        """A record's weight before it is divided by the mean; None for what is no number.

        >>> record_weight(power=0.5).raw(0.25), record_weight().raw("large"), record_weight().raw(0)
        (2.0, None, 10000.0)
        """
        if isinstance(size, bool) or not isinstance(size, int | float) or not math.isfinite(size):
            return None
        return float(max(size, self.smallest) ** -self.power)

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`record_weight` [B]."""
        columns["record_weight"] = torch.tensor([self.weights.get(p, 1.0) for p in columns["problem"].tolist()])


@method(
    paper="2505.15810",
    title="GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents, difficulty weight",
    checked="paper (formulas; its code was not read; the map from a target's size to its weight is reconstructed)",
    couples="row",
)
def gui_g1(advantage: PerToken, record_weight: PerRow) -> PerToken:
    """A times the record's weight (`providers: [record_weight]`).

    The paper weights the row's whole loss, including a KL term; with an advantage whose loss is linear in it, that is the same. Use it with
    `advantage: {kind: grpo, scale: none}` and `loss_aggregation: fixed_length`, as the paper does.

    >>> import torch
    >>> gui_g1(torch.tensor([[0.5, 0.5], [-0.5, -0.5]]), torch.tensor([2.0, 0.5])).tolist()
    [[1.0, 1.0], [-0.25, -0.25]]
    """
    return advantage * record_weight[:, None]
