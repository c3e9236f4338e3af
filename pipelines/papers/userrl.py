"""The score of a trajectory against its group, shared among its turns by a rule.

Presets: userrl.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import group_size, standardised
from pipelines.rlvr.ops_turns import returns_to_go, turns_to_tokens


@method(
    paper="2509.19736",
    title="UserRL: Training Interactive User-Centric Agent via Reinforcement Learning",
    checked="official code (`sum` is a sum, not the mean rounded to four digits; the limit of the scale is ours)",
    couples="group",
    group_of_one="keeps its score",
    zero_variance_groups="rows of equal scores get 0",
    reduces_to="turns: equalised and score: sum is grpo on the sum of the turn rewards",
)
def userrl(
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    turns: Literal["equalised", "reward_to_go", "exponential"] = "equalised",
    score: Literal["sum", "reward_to_go"] = "reward_to_go",
    discount: Annotated[float, Field(ge=0, le=1)] = 0.8,
    rate: Annotated[float, Field(gt=0)] = 2.0,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
    most: Annotated[float, Field(ge=1)] = 10.0,
) -> PerToken:
    """z c_s N / (sum of c over the tokens): the mean over a row's N tokens with a credit is its standardised score z.

        c_s: equalised 1; reward_to_go G_s = r_s + discount G_{s+1}; exponential 1/2 + 1/2 (1 - e^(-rate r_s)) / (1 - e^-rate)

    `score` is the sum of the turn rewards, or G of the first turn. A row whose credits sum to 0 gets 0, so failing rows have no gradient
    with `turns: reward_to_go`; credits of both signs can nearly cancel, and N / (their sum) is limited to ±`most`.

    >>> import torch
    >>> r, k = torch.tensor([[0, 0.5, 1.0], [0, 0, 0.5]]), torch.tensor([[0, 1, 2], [0, 1, 2]])
    >>> t = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 2, 2]]); g, yes = torch.zeros(2).long(), torch.ones(2).bool()
    >>> userrl(r, k, t, g, yes, t >= 0, turns="reward_to_go")[0, [0, 2, 5]].tolist()
    [0.632140, 0.790175, 0.607827]
    >>> userrl(r, k, t, g, yes, t >= 0)[:, 0].tolist()
    [0.707105, -0.707105]
    """
    returns = returns_to_go(turn_reward, discount)
    total = returns[:, 0] if score == "reward_to_go" else turn_reward.double().sum(1)
    z = standardised(total, group, scored, eps=eps)
    z = torch.where(group_size(group, scored) > 1, z, total * scored)
    real_turns = (turn_state >= 0) & scored[:, None]
    if turns == "equalised":
        credits = torch.ones_like(returns)
    elif turns == "reward_to_go":
        credits = returns
    else:
        rate_one = torch.tensor(rate, dtype=torch.float64)
        credits = 0.5 + 0.5 * torch.expm1(-rate * turn_reward.double()) / torch.expm1(-rate_one)
    per_token = turns_to_tokens(credits * real_turns, turn).double() * mask
    credited = (per_token != 0).sum(1)
    sums = per_token.sum(1)
    safe = torch.where(sums == 0, 1.0, sums)
    scale = torch.where(sums == 0, 0.0, (credited / safe).clamp(-most, most))
    return (per_token * (scale * z)[:, None]).float()
