"""Cross-entropy that leaves alone what the model finds impossible."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerTrained


@method(
    paper="2508.05629",
    title="On the Generalization of SFT: A Reinforcement Learning Perspective with Reward Rectification (Dynamic Fine-Tuning)",
    checked="official code (read; fsdp_dft_trainer.py)",
    stops_gradient="at the probability that weighs the token",
)
def dft(logp: PerTrained) -> PerTrained:
    """-p log p with p = pi(token) as a constant factor, so the gradient is that of the probability, p times the cross-entropy's.

    Cross-entropy weights the gradient of a token's probability by 1 / p, the more the less likely it is; here all weights are equal. A
    token of probability near 0 gets no gradient: what the model cannot do at all, such as a new format, it does not learn. Train some steps
    of `cross_entropy` first, as a stage of its own.

    >>> import torch
    >>> [round(v, 6) for v in dft(torch.tensor([0.9, 0.5, 0.05]).log()).tolist()]
    [0.094824, 0.346574, 0.149787]
    """
    return -logp.detach().exp() * logp
