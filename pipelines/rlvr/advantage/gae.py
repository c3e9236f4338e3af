"""Generalised advantage estimation with a critic."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.common.estimate import generalised_advantage
from pipelines.rlvr.common.part_rules import values_of_tokens
from pipelines.rlvr.ops import whiten as standardise


@method(
    paper="1506.02438",
    title="High-Dimensional Continuous Control Using Generalized Advantage Estimation; PPO (1707.06347)",
    checked="third-party code (verl, 7 cases; NeMo RL for length_adaptive, 5 cases)",
    couples="row",
    couples_batch_with=(("whiten", True),),
    group_of_one="compares with the critic, not with a group",
    crosses_groups="whitening is over the batch",
    zero_variance_groups="learns",
    check=values_of_tokens,
)
def gae(
    immediate_reward: PerToken,
    value: PerToken,
    mask: PerToken,
    scored: PerRow,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0,
    whiten: bool = True,
    length_adaptive: Annotated[float, Field(gt=0)] | None = None,
) -> PerToken:
    """What is paid at each token, carried backwards over trained tokens only.

        d_t = r_t + discount V_{t+1} - V_t;   A_t = d_t + discount lam A_{t+1}

    r_t is the reward of a turn on its last trained token, the outcome on the row's last (`immediate_reward`), less a divergence penalty in
    the reward at its tokens. Tokens of an environment are skipped, as if they were not there. A truncated row counts as finished; `t_ppo`
    bootstraps it. The critic must be fitted with the same `discount`: where its values are exact, the advantage is 0 before whitening.
    `length_adaptive` gives every row a lam of its own instead, 1 - 1 / max(1, length_adaptive l) with l its trained tokens, so that a long
    row bootstraps over as large a share of it as a short one (VAPO, 2504.05118, which takes 0.05).

    >>> import torch
    >>> V, m = torch.tensor([[0.5, 0.4, 0.9, 0.3, 0.6]]), torch.tensor([[1, 1, 0, 1, 1]]).bool()
    >>> r, scored = torch.tensor([[0.0, 0, 0, 0, 1]]), torch.ones(1).bool()
    >>> gae(r, V, m, scored, discount=0.99, lam=0.95, whiten=False)[0].tolist()
    [0.391947, 0.527323, 0.0, 0.6702, 0.4]
    >>> gae(r, V, m, scored, discount=0.99, lam=0.95)[0].tolist()
    [-0.80568, 0.228936, 0.0, 1.320881, -0.744137]
    """
    trained = mask & scored[:, None]
    own_lam = lam if length_adaptive is None else 1 - 1 / (length_adaptive * trained.sum(1).double()).clamp(min=1)
    finished = torch.ones_like(scored)
    advantage = generalised_advantage(immediate_reward, value, trained, finished, discount, own_lam)
    return standardise(advantage, trained) if whiten else advantage
