"""GAE that bootstraps truncated rows instead of taking them for finished."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.advantage._estimate import generalised_advantage, outcome


@method(
    paper="2506.15050",
    title="Truncated Proximal Policy Optimization, extended GAE",
    checked="reconstructed (boundary rule from second-hand texts; the windowed rollout is not part of it)",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
    bootstraps_truncated=True,
    reduces_to="without truncated rows it is gae without whitening",
)
def t_ppo(
    reward: PerRow,
    value: PerToken,
    mask: PerToken,
    scored: PerRow,
    truncated: PerRow,
    token_penalty: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95,
) -> PerToken:
    """Finished rows as in `gae`; a truncated row has no reward and V after its end is V of its last token.

    The critic is fitted to finished rows alone: the reward of a truncated one is unknown.
    With `discount` 1 the last token of a truncated row gets 0: truncation itself carries no signal.

    >>> import torch
    >>> V, m, one = torch.tensor([[0.2, 0.4, 0.5]] * 2), torch.ones(2, 3).bool(), torch.ones(2)
    >>> t_ppo(one, V, m, one.bool(), torch.tensor([True, False]), V * 0).tolist()
    [[0.295, 0.1, 0.0], [0.74625, 0.575, 0.5]]
    """
    row_outcome = outcome(reward, token_penalty)
    return generalised_advantage(row_outcome, token_penalty, value, mask & scored[:, None], ~truncated, discount, lam)
