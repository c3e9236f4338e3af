"""Learning to Reason under Off-Policy Guidance.

Presets: luffy.

Another model's solution is one more member of the group, and its tokens count by how far they still are from certain.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import ratio


@method(
    paper="2504.14945",
    title="Learning to Reason under Off-Policy Guidance (LUFFY)",
    checked="official code, 5 cases",
    zero_gradient_at_zero_advantage=True,
    reduces_to="without demonstrations it is clip without bounds",
)
def luffy(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    teacher_forced: PerToken,
    *,
    gamma: Annotated[float, Field(gt=0)] = 0.1,
) -> PerToken:
    """-rho A on the policy's own tokens, -f(p) A with f(p) = p / (p + gamma) on teacher-forced ones, p their probability now.

    The gradient of f(p) by log p is gamma p / (p + gamma)^2: largest at p = gamma, so that tokens which the policy finds unlikely but
    possible are imitated first, where importance sampling (f = p) would hardly move them; what it knows already is left alone. Nothing is
    clipped, as in the released script. Take it where records hold solutions of a stronger model (`rollout: demonstrated`) and the policy
    solves too few problems to learn from its own answers; a demonstration's advantage is that of its reward in the group.

    >>> import torch
    >>> p = torch.tensor([[0.1, 0.9]]).log().requires_grad_()
    >>> luffy(p, p.detach(), torch.ones(1, 2), torch.tensor([[True, True]])).sum().backward(); p.grad.tolist()
    [[-0.25, -0.09]]
    """
    likely = logp.clamp(max=0.0).exp()
    return -advantage * torch.where(teacher_forced, likely / (likely + gamma), ratio(logp, logp_old))
