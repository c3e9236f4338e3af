"""Each turn is paid by how much likelier it made the gold answer."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import returns_to_go, turns_to_tokens


@method(
    paper="2510.14967",
    title="Information Gain-based Policy Optimization (IGPO)",
    checked="official code (read; the two normalisations are the paper's, at second hand)",
    zero_variance_groups="learns",
    group_of_one="the turns of one episode are compared with each other",
    provenance=("policy",),
)
def igpo(
    reward: PerRow,
    answer_logp: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    gain: Literal["probability", "log_probability"] = "probability",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Turn k gets p_{k+1} - p_k, p_k = exp(mean log pi(gold answer | history before turn k)); the last turn gets the reward.

    Gains are standardised over all turns of the group, rewards over its rows; a turn's tokens get its discounted return. Without gains
    (one turn, no gold answer) the reward alone remains. The released code works token by token, does not carry returns across
    observations and subtracts the group's mean per position; here credit crosses turns, as in the paper.

    >>> import torch
    >>> p = torch.tensor([[0.10, 0.30, 0.25], [0.10, 0.12, 0.40]]); k = torch.arange(3).expand(2, 3)
    >>> one = torch.ones(2).bool(); r = torch.tensor([1.0, 0.0])
    >>> A = igpo(r, p.log(), k, torch.zeros(2).long(), one, k >= 0, discount=0.9)
    >>> [[round(v, 4) for v in row] for row in A.tolist()]
    [[0.19, -0.4223, 0.7071], [-0.1932, 0.4549, -0.7071]]
    """
    likelihood = answer_logp.double().exp() if gain == "probability" else answer_logp.double()
    gains = torch.nn.functional.pad(likelihood, (0, 1), value=torch.nan)[:, 1:] - likelihood
    gained = scored[:, None] & gains.isfinite()  # not of a last turn, after which there is no value
    turn_group = group[:, None].expand_as(gained)
    paid = standardised(gains.nan_to_num(0.0).flatten(), turn_group.flatten(), gained.flatten(), eps=eps).view_as(gains)
    last = torch.arange(gains.shape[1]) == turn.amax(1, keepdim=True)
    outcome = standardised(reward, group, scored, eps=eps)[:, None]
    return turns_to_tokens(returns_to_go(torch.where(last, outcome, paid), discount), turn) * mask
