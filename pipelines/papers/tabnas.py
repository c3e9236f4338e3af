"""Rows that break a constraint are rejected, as if they had never been drawn.

Presets: tabnas.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, Phase

COLUMNS = {
    "parsable": Column(
        "B",
        "bool",
        Phase.FILTER,
        "the verifier",
        "The verifier found an answer that it could judge; its status is not `unparsable`.",
        row=lambda t: t.status != "unparsable",
    ),
}


@method(
    paper="2204.07615",
    title="TabNAS: Rejection Sampling for Neural Architecture Search on Tabular Datasets",
    checked="closed form (all groups enumerated, against the gradient of the policy that samples valid rows alone)",
    leaves_statistics=True,
    couples="row",
)
def valid(
    parsable: PerRow, truncated: PerRow, length: PerRow, *, longest: Annotated[int, Field(ge=1)] | None = None
) -> PerRow:
    """Rows with an answer that could be read, that ended by themselves, in at most `longest` tokens; others are in no statistic.

    The objective is then the reward of the policy p(y | V) that samples until a row is valid. Its gradient is

        E_V[r (grad log p(y) - grad log P(V))] = E_V[(r - E_V r) grad log p(y)],   for grad log P(V) = E_V[grad log p(y)]

    so the correction for the rejected rows is a baseline over the valid ones: exactly `advantage: rloo`, up to the factor (m - 1) / m of a
    group with m valid rows `advantage: {kind: grpo, scale: none}`. A reward of 0 for invalid rows instead adds the gradient of P(V), which
    reinforces rows that are merely valid. Use `objective: reinforce` and a `loss_aggregation` that sums a row's tokens (`fixed_length`).
    The paper estimates P(V) by Monte Carlo; here the group's own rows do. A group with one valid row or none gives no gradient.

    >>> import torch
    >>> yes, no, n = torch.tensor([True, True, False]), torch.tensor([False, True, False]), torch.tensor([5.0, 5, 5])
    >>> valid(yes, no, n).tolist(), valid(yes, no & ~no, n, longest=4).tolist()
    ([True, False, False], [False, False, False])
    """
    kept = parsable & ~truncated
    return kept if longest is None else kept & (length <= longest)
