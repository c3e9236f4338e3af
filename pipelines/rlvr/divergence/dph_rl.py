"""Rehearsal: a divergence from the starting policy on its own correct completions."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2509.07430",
    title="The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL)",
    checked="official code, 12 cases",
    legal_in=("loss",),
    requires=(("replay", "dph_rl"),),
)
def dph_rl(
    logp: PerToken,
    logp_old: PerToken,
    replayed: PerRow,
    *,
    f: Literal["forward", "js", "alpha"] = "forward",
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> PerToken:
    """f(u) on tokens of replayed rows, u = pi / pi_start; 0 on the step's own. The samples are fixed, so the gradient is exact.

        forward: u - 1 - log u;   js: u log u - (u + 1) log((u + 1) / 2);   alpha: (u^(1-a) - (1-a) u - a) / (a (a - 1))

    The released code clamps the forward value to 10; ours clamps only the log-ratio. Means under the starting policy:
    KL(start, pi); twice the Jensen-Shannon divergence; the alpha divergence. The rows come
    from `replay: dph_rl`, which keeps correct completions of the starting policy.

    >>> import torch
    >>> ref, pi = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.7, 0.2, 0.1]])
    >>> mean = lambda f: round((ref * dph_rl(pi.log(), ref.log(), torch.tensor([True]), f=f)).sum().item(), 5)
    >>> mean("forward"), mean("js"), mean("alpha")
    (0.09203, 0.0438, 0.0862)
    """
    log_u = (logp - logp_old).clamp(-20, 20)
    u_minus_1 = torch.expm1(log_u)  # u - 1: near the start, where it is small, single precision keeps its digits
    if f == "forward":
        value = u_minus_1 - log_u
    elif f == "js":
        value = (u_minus_1 + 1) * log_u - (u_minus_1 + 2) * torch.log1p(u_minus_1 / 2)
    else:
        value = (torch.expm1((1 - alpha) * log_u) - (1 - alpha) * u_minus_1) / (alpha * (alpha - 1))
    return value * replayed[:, None]
