"""A step is correct with probability sigmoid(its reward): a process reward model."""

import torch.nn.functional as F

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerStep


@method(
    paper="2312.08935",
    title="Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations (soft labels as in 2502.10325)",
    checked="paper (and by TRL's PRMTrainer: the cross-entropy of two labels whose logits differ by the reward)",
)
def step_bce(step_reward: PerStep, step_label: PerStep) -> PerStep:
    """-y log sigmoid(r) - (1 - y) log(1 - sigmoid(r)), for the label y of each step; a label between 0 and 1 is a share.

    The stage takes the mean over all labelled steps of an update, however many an answer has.

    >>> import torch
    >>> step_bce(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 0.25]))
    tensor([0.6931, 0.1269, 1.6269])
    """
    return F.binary_cross_entropy_with_logits(step_reward, step_label, reduction="none")
