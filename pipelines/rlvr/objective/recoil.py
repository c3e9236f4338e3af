"""Demonstrations are imitated and stored answers are used beside them, by the dual of a divergence between mixtures."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import demonstrations, group_size, group_sum


@method(
    paper="2302.08560",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (ReCOIL)",
    checked="closed form (the paper's dual with a whole answer as one action, against its primal)",
    batch_coupled=True,
    not_reinforce="it reads no advantage",
    reduces_to="share 1 without other demonstrations in the group is SFT on the demonstration",
)
def recoil(
    logp: PerToken,
    logp_ref: PerToken,
    mask: PerToken,
    teacher_forced: PerToken,
    group: PerRow,
    in_loss: PerRow,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 0.5,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
) -> PerToken:
    """Of each group with a demonstration, over all its rows' log-ratios s = sum_t logp - logp_ref:

        temperature / (4 share) Var_mix(s) - mean_demo(s)

    Var_mix is the variance over the mixture of demonstrations (`share` in all) and the other rows (the rest), which may come from any
    policy: nothing corrects for the policy that sampled them. The first term keeps the demonstration's log-ratio close to the other rows',
    where SFT (which has the second alone) raises it without end.

    This is ReCOIL's dual with the chi-square divergence,  share (E_pi Q - E_demo Q) + E_mix[Q^2] / 4,  minimised over Q: an answer is one
    action, nothing follows it, and Q = temperature s + V(problem) is the soft Q of which the policy is the softmax over the reference. V is
    the minimising one, so that Q has the mean 0 over the mixture. With that the minimum is minus that of the primal,

        share temperature KL(pi || pi_ref) + chi2(share pi + (1 - share) others || share demo + (1 - share) others)

    over the answers that the group has: no discriminator, and the other rows need not cover the demonstration. With `share` 1 the other
    rows are left out, as in IQ-Learn. The paper's Bellman backups over steps are not here, and a group's rows stand for both distributions.

    Every token of a group's rows holds the group's loss: use `loss_aggregation: row_mean`. A group without a demonstration has none.

    >>> import torch
    >>> s, one, demo = torch.tensor([[0.2], [-0.4]]), torch.ones(2, 1).bool(), torch.tensor([[True], [False]])
    >>> recoil(s, s * 0, one, demo, torch.zeros(2).long(), one[:, 0], temperature=2.0).tolist()  # 0.3^2 - 0.2
    [[-0.11], [-0.11]]
    """
    log_ratio = ((logp - logp_ref) * mask).sum(1)
    shown = demonstrations(mask, teacher_forced) & in_loss
    others = in_loss & ~shown
    count, count_others = group_size(group, shown), group_size(group, others)
    beta = torch.where(count_others > 0, torch.full_like(count, share), 1.0)
    mixture = torch.where(shown, beta / count.clamp(min=1), (1 - beta) / count_others.clamp(min=1)) * in_loss
    deviation = log_ratio - group_sum(mixture * log_ratio, group)
    variance = group_sum(mixture * deviation**2, group)
    imitation = group_sum(shown * log_ratio, group) / count.clamp(min=1)
    loss = torch.where(count > 0, temperature / (4 * share) * variance - imitation, 0.0)
    return loss[:, None].to(logp.dtype) * mask
