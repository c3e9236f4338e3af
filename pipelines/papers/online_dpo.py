"""Direct Language Model Alignment from Online AI Feedback.

Presets: online_dpo.

DPO on pairs that the policy has just drawn, ordered by whatever scores them.
"""

from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.papers.common.pairs import spread_pairs


@method(
    paper="2402.04792",
    title="Direct Language Model Alignment from Online AI Feedback (OAIF, online DPO)",
    checked="third-party code (trl), 6 cases (pairs of equal rewards left out)",
    batch_coupled=True,
    ratio_level="sequence",
    not_reinforce="it compares rewards instead of reading an advantage",
)
def online_dpo(
    logp: PerToken,
    logp_ref: PerToken,
    mask: PerToken,
    reward: PerRow,
    group: PerRow,
    in_loss: PerRow,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    loss: Literal["sigmoid", "ipo"] = "sigmoid",
) -> PerToken:
    """Mean over the pairs i, j of a group with r_i > r_j of -log sigmoid(beta (s_i - s_j)), s = sum_t (logp - logp_ref).

    `ipo`: (s_i - s_j - 1 / (2 beta))^2. With `group_size: 2` it is the online DPO of the paper and of TRL; a larger group gives more pairs
    of the same answers. Any reward orders the pairs: a verifier, a reward model, a judge. TRL also trains a pair of equal rewards, in the
    order in which it was drawn; here it has no loss, which matters where a verifier gives 0 and 1. beta is the weight of the KL that DPO
    implies, so `divergence` stays null. Use `loss_aggregation: row_mean`, which makes the loss the mean over the groups.

    Take it where rewards are only good for comparing two answers (a reward model, a judge), and offline pairs of a `preference`
    stage have become too unlike the policy. Of a verifier's 0 and 1 `rloo` or `grpo` learn more from the same rows.

    >>> import torch
    >>> s, r, one = torch.tensor([[0.5], [0.0], [0.0]]), torch.tensor([1.0, 0, 0]), torch.ones(3, 1).bool()
    >>> made = online_dpo(s, s * 0, one, r, torch.zeros(3).long(), one[:, 0], beta=2.0)
    >>> round(made.mean().item(), 6)  # both pairs: -log sigmoid(1)
    0.313262
    """
    together = (group[:, None] == group) & in_loss[:, None] & in_loss
    better, worse = (together & (reward[:, None] > reward)).nonzero(as_tuple=True)
    log_ratio = ((logp - logp_ref) * mask).sum(1)
    lead = log_ratio[better] - log_ratio[worse]
    value = -F.logsigmoid(beta * lead) if loss == "sigmoid" else (lead - 1 / (2 * beta)) ** 2
    return spread_pairs(value, better, worse, group, in_loss)[:, None].to(logp.dtype) * mask
