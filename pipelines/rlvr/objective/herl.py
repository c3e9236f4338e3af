"""Dual-clipped policy gradient on rollouts, and a shaped ratio without a clip on rewrites."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped, dual_clipped, ratio


@method(
    paper="https://github.com/sikelifei/HeRL",
    title="Experience is the Best Teacher: Motivating Effective Exploration in Reinforcement Learning for LLMs (HeRL)",
    checked="official code (read; the mixed loss of core_algos)",
    zero_gradient_at_zero_advantage=True,
    ratio_level="token",
    reduces_to="without teacher-forced tokens it is clip with dual 3",
)
def herl(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    teacher_forced: PerToken,
    *,
    gamma: Annotated[float, Field(ge=0)] = 0.1,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
    dual: Annotated[float, Field(gt=1)] | None = 3.0,
) -> PerToken:
    """Clipped loss on the policy's tokens; on teacher-forced ones

        l = -A rho / (rho + gamma);   rho = exp(logp - logp_old)

    whose gradient is largest where the policy gives a token about gamma times its old probability. `gamma` 0 is -rho A, as in the released
    code. A teacher-forced token's old log-probability is the trainer's own, so rho starts at 1 and the weight at 1 / (1 + gamma).

    >>> import torch
    >>> rho, A = torch.tensor([[-2.0, 0.0, 0.5]]), torch.ones(1, 3)
    >>> [round(-v, 6) for v in herl(rho, torch.zeros(1, 3), A, torch.ones(1, 3).bool())[0].tolist()]
    [0.575074, 0.909091, 0.942815]
    """
    rho = ratio(logp, logp_old)
    shaped = rho if gamma == 0 else rho / (rho + gamma)
    on_policy_loss = dual_clipped(clipped(rho, advantage, low, high), advantage, dual)
    return torch.where(teacher_forced, -shaped * advantage, on_policy_loss)
