"""Only correct answers train."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="https://github.com/TianHongZXY/RLVR-Decomposed",
    title="The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    checked="official code",
    couples="row",
)
def correct(correct: PerRow, in_loss: PerRow) -> PerRow:
    """Rows that may train and are correct; a step without any makes no update.

    >>> import torch
    >>> correct(torch.tensor([1.0, 0, 0, 1]), torch.tensor([True, True, True, False])).tolist()
    [True, False, False, False]
    """
    return in_loss & (correct > 0)
