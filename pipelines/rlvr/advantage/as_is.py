"""A reward that already is an advantage."""

from pipelines.catalogue import method
from pipelines.columns import PerRow


@method(
    paper="https://github.com/Alibaba-NLP/qqr",
    title="ArenaRL: tournament-based relative ranking (its ranks are centred when they come)",
    checked="closed form",
    alone="compares nothing: the reward was made by comparing",
)
def as_is(reward: PerRow, counted: PerRow) -> PerRow:
    """The reward, where there is one.

    >>> import torch
    >>> as_is(torch.tensor([1.2, -0.3]), torch.tensor([True, False])).tolist()
    [1.2, -0.0]
    """
    return (reward * counted).float()
