"""The reward is used as the advantage."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="https://github.com/Alibaba-NLP/qqr",
    title="ArenaRL: tournament-based relative ranking (its rank rewards are already centred)",
    checked="closed form",
    group_of_one="compares nothing: the reward is a comparison already",
    couples="row",
)
def as_is(reward: PerRow, scored: PerRow) -> PerRow:
    """The reward, where there is one.

    >>> import torch
    >>> as_is(torch.tensor([1.2, -0.3]), torch.tensor([True, False])).tolist()
    [1.2, -0.0]
    """
    return (reward * scored).float()
