"""Steps that bring the answer nearer are paid, and what follows a solved step earns less of the outcome."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import SAME, group_mean
from pipelines.rlvr.ops_turns import turns_taken, turns_to_tokens


@method(
    paper="2601.03823",
    title="Step Potential Advantage Estimation (SPAE)",
    checked="reconstructed (formula from a summary; scope of the scaling, the means and the deviation assumed: all steps of the batch)",
    crosses_groups="rises of the potential are scaled over the batch",
    zero_variance_groups="learns",
)
def spae(
    reward: PerRow,
    step_potential: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    saturated: Annotated[float, Field(ge=-1, le=1)] = 0.9,
    damping: Annotated[float, Field(ge=0, le=1)] = 0.5,
    weight: Annotated[float, Field(ge=0)] = 0.5,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Standardised over the batch's steps: (r - mean_group r) f_k + weight g_k, spread over the tokens of step k.

    f_k = 1 - damping (1 - exp(-c_k)), c_k the number of steps before k whose potential is above `saturated`; g_k = exp(n_k) - its mean over
    steps, n_k the rise of the potential scaled to 0..1 over steps, and 0 for a first step. A step without a potential rises by 0.

    >>> import torch
    >>> V = torch.tensor([[-0.205, 0.1, 0.8915, 0.93545]]); k = torch.arange(4)[None]
    >>> raw = shaped(V.double(), k >= 0, torch.tensor([0.5]), saturated=0.85, damping=0.5, weight=0.5)
    >>> [round(v, 4) for v in raw[0].tolist()]
    [0.2193, 0.4544, 1.0785, 0.0898]
    >>> one = torch.ones(1).bool()
    >>> [round(v, 4) for v in spae(torch.ones(1), V, k, torch.zeros(1).long(), one, k >= 0, weight=1.0)[0].tolist()]
    [-0.7024, -0.1142, 1.4476, -0.631]
    """
    taken = turns_taken(turn, mask, step_potential.shape[1])
    if taken.sum() < 2:
        return torch.zeros_like(mask, dtype=torch.float32)
    centred = reward - group_mean(reward, group, scored)
    raw = shaped(step_potential.double(), taken, centred, saturated=saturated, damping=damping, weight=weight)
    values = raw[taken]
    standard = torch.where(taken, (raw - values.mean()) / (values.std() + eps), 0.0)
    return turns_to_tokens(standard, turn) * mask


def shaped(
    potential: torch.Tensor,
    taken: torch.Tensor,
    centred: torch.Tensor,
    *,
    saturated: float,
    damping: float,
    weight: float,
) -> torch.Tensor:
    """The steps' advantages before they are standardised, float64 [B, S]; there is a step.

    Args:
        potential: float64 [B, S]; NaN where a step has none.
        taken: bool [B, S], steps that exist.
        centred: float [B], rewards less the group's mean.
    """
    solved = ((potential > saturated) & taken).double()
    factor = 1 - damping * (1 - (-(solved.cumsum(1) - solved)).exp())
    rise = torch.nn.functional.pad(potential[:, 1:] - potential[:, :-1], (1, 0)).nan_to_num(0.0)
    known = rise[taken]
    spread = known.max() - known.min()
    scaled = (rise - known.min()) / spread if spread > SAME else torch.zeros_like(rise)
    gain = scaled.exp() - scaled[taken].exp().mean()
    return (centred.double()[:, None] * factor + weight * gain) * taken
