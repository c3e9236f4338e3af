"""Harder records weigh more."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2505.15810",
    title="GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents, difficulty weight",
    checked="paper (formulas; its code was not read; the map from a target's size to its weight is reconstructed)",
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
