"""GAE that bootstraps unfinished rows instead of taking them for finished.

Presets: t_ppo.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.common.estimate import generalised_advantage
from pipelines.rlvr.common.part_rules import values_of_tokens
from pipelines.rlvr.ops import next_index


@method(
    paper="2506.15050",
    title="Truncated Proximal Policy Optimization, extended GAE",
    checked="reconstructed (boundary rule and windows from second-hand texts)",
    couples="row",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
    check=values_of_tokens,
    reduces_to="without unfinished rows it is gae without whitening",
)
def t_ppo(
    immediate_reward: PerToken,
    value: PerToken,
    mask: PerToken,
    scored: PerRow,
    unfinished: PerRow,
    in_window: PerToken,
    token_penalty: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95,
) -> tuple[PerToken, PerToken]:
    """Finished rows as in `gae`; an unfinished row has no outcome and V after its end is V of its last token.

    With `rlvr.window` a row trains after every window, on the tokens of that window alone: the share of the others in the
    loss is 0, so each token trains in one step. A row at `max_tokens` is then finished and has its reward; without windows it counts
    as unfinished. The critic is fitted to finished rows alone, to all of their tokens: the reward of others is unknown.
    With `discount` 1 the last token of an unfinished row gets 0: the cut itself carries no signal.

    >>> import torch
    >>> V, m, one = torch.tensor([[0.2, 0.4, 0.5]] * 2), torch.ones(2, 3).bool(), torch.ones(2).bool()
    >>> paid = torch.tensor([[0.0, 0.0, 1.0]] * 2)
    >>> advantage, share = t_ppo(paid, V, m, one, torch.tensor([True, False]), m, V * 0)
    >>> advantage.tolist(), share.tolist()
    ([[0.295, 0.1, 0.0], [0.74625, 0.575, 0.5]], [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """
    trained = mask & scored[:, None]
    at_cut = trained & (next_index(trained) == trained.shape[1]) & unfinished[:, None]
    rewards = torch.where(at_cut, -token_penalty, immediate_reward)
    advantage = generalised_advantage(rewards, value, trained, ~unfinished, discount, lam)
    return advantage, (in_window & mask).float()
