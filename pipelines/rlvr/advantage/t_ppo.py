"""GAE that does not take a cut-off answer for a finished one."""

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

    The critic is fitted to finished rows alone: what a cut-off one would have earned nobody knows.
    With `discount` 1 the last token of a truncated row gets 0: the cut itself says nothing.

    >>> import torch
    >>> V, m, one = torch.tensor([[0.2, 0.4, 0.5]] * 2), torch.ones(2, 3).bool(), torch.ones(2)
    >>> t_ppo(one, V, m, one.bool(), torch.tensor([True, False]), V * 0).tolist()
    [[0.295, 0.1, 0.0], [0.74625, 0.575, 0.5]]
    """
    paid = outcome(reward, token_penalty)
    return generalised_advantage(paid, token_penalty, value, mask & scored[:, None], ~truncated, discount, lam)
