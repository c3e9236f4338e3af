"""Group-centred reward, whitened over the batch's tokens."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean, to_tokens, whiten


@method(
    paper="2501.03262",
    title="REINFORCE++ with group baseline",
    checked="third-party code (verl), 7 cases",
    crosses_groups="whitens over all tokens of the batch by design",
)
def reinforce_pp_baseline(reward: PerRow, group: PerRow, scored: PerRow, mask: PerToken) -> PerToken:
    """Reward minus the group's mean on every token, whitened over all trained tokens (ddof 1).

    The mean that whitening removes is weighted by tokens, so a homogeneous group can get a small
    non-zero value. A group of one is centred to 0; verl keeps its raw reward.

    >>> import torch
    >>> m = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]]).bool()
    >>> r, g = torch.tensor([1.0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
    >>> reinforce_pp_baseline(r, g, torch.ones(4).bool(), m)[:, 0].tolist()
    [1.767767, -1.060660, 0.353553, 0.353553]
    """
    mask = mask & scored[:, None]
    return whiten(to_tokens(reward - group_mean(reward, group, scored), mask), mask)
