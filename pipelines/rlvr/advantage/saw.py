"""Answers are imitated, each with a weight that grows exponentially with its advantage."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import demonstrations, group_mean, group_size


@method(
    paper="2505.14975",
    title="Flattening Hierarchies with Policy Bootstrapping (SAW: advantage-weighted regression and way-point bootstrapping)",
    checked="official code (read; means of the group's rows in the place of the learned value)",
    group_of_one="imitates it with the weight 1",
    zero_variance_groups="learns",
    reduces_to="weight 0 is advantage-weighted regression on all rows",
)
def saw(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    teacher_forced: PerToken,
    *,
    alpha: Annotated[float, Field(ge=0)] = 3.0,
    beta: Annotated[float, Field(ge=0)] = 3.0,
    weight: Annotated[float, Field(ge=0)] = 1.0,
    cap: Annotated[float, Field(gt=0)] = 100.0,
) -> PerRow:
    """Weights of log-likelihoods (`objective: reinforce`), the released objective's terms:

        any row                                       min(exp(alpha (r - V)), cap)
        a hinted row after the plain prompt, added     weight min(exp(beta (V_hint - V)), cap)

    V is the mean reward of the group's rows that the policy sampled from this very prompt, V_hint that of the rows drawn with the hint. The
    second term is the bootstrapping one, exp(beta A(s, w, g)) KL(pi(. | s, w) || pi(. | s, g)): the hinted rows are draws of pi(. | s, w),
    which has no gradient there, so imitating them, correct or incorrect, has the gradient of that divergence on average. Its weight grows
    with the hint's benefit. The first one is advantage-weighted regression; on rows that keep their hinted prompt, which are a group of
    their own, it trains the policy that knows the sub-goal.

    The paper learns V by expectile regression over single steps of stored trajectories; here an answer is one step, and V a mean.

    >>> import torch
    >>> r, told = torch.tensor([0.0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]).bool()[:, None]
    >>> one = torch.ones(4).bool()
    >>> saw(r, torch.zeros(4).long(), one, one[:, None], told, alpha=2.0, beta=1.0).tolist()  # e^-1, e, e + e^0.5 twice
    [0.367879, 2.718282, 4.367003, 4.367003]
    """
    told = demonstrations(mask, teacher_forced) & scored
    own = scored & ~told
    value_told = group_mean(reward, group, told)
    value = torch.where(group_size(group, own) > 0, group_mean(reward, group, own), value_told)
    regression = (alpha * (reward - value)).exp().clamp(max=cap)
    bootstrapping = (beta * (value_told - value)).exp().clamp(max=cap)
    return ((regression + weight * bootstrapping * told) * scored).float()
