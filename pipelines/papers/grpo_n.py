"""Only what is worse than its group is learned from.

Presets: grpo_n.
"""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2510.04028",
    title="The Debate on RLVR Reasoning Capability Boundary: Shrinkage, Expansion, or Both? A Two-Stage Dynamic View (GRPO-N)",
    checked="reconstructed (abstract and reviews; that positives are zeroed after the normalisation is assumed)",
    couples="row",
)
def grpo_n(advantage: PerToken) -> PerToken:
    """min(A, 0): positive advantages become 0 after the group's statistics were taken over all rows.

    Zeroed tokens stay in the loss's denominator, so the gradient is the negative part of the one without. Unlike `advantage:
    w_reinforce`, groups without reward differences stay at 0. With `objective: gspo` it is GSPO-N.

    >>> import torch
    >>> grpo_n(torch.tensor([[1.5, 1.5], [-0.5, 0.0]])).tolist()
    [[0.0, 0.0], [-0.5, 0.0]]
    """
    return advantage.clamp(max=0)
