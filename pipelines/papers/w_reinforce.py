"""The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning.

https://github.com/TianHongZXY/RLVR-Decomposed. Presets: nsr, psr, w_reinforce. Parts: incorrect (filter), w_reinforce (advantage).

Only incorrect answers train.

Fixed weights for correct and incorrect answers, no baseline.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="https://github.com/TianHongZXY/RLVR-Decomposed",
    title="The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    checked="official code",
    couples="row",
)
def incorrect(correct: PerRow, in_loss: PerRow) -> PerRow:
    """Rows that may train and are incorrect; a step without any makes no update.

    >>> import torch
    >>> incorrect(torch.tensor([1.0, 0, 0, 1]), torch.tensor([True, True, True, False])).tolist()
    [False, True, True, False]
    """
    return in_loss & (correct == 0)


@method(
    paper="https://github.com/TianHongZXY/RLVR-Decomposed",
    title="The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    checked="official code, 5 cases",
    couples="row",
    zero_variance_groups="learns",
    reduces_to="right: 1, wrong: 0 is PSR; right: 0, wrong: 1 is NSR",
    group_of_one="compares nothing: a group of one has its own sign",
)
def w_reinforce(
    correct: PerRow,
    scored: PerRow,
    *,
    right: Annotated[float, Field(ge=0)] = 0.1,
    wrong: Annotated[float, Field(ge=0)] = 1.0,
) -> PerRow:
    """`right` for correct answers, minus `wrong` for incorrect ones; zero-variance groups contribute too.

    Looks at correctness, not at the shaped reward.

    >>> import torch
    >>> w_reinforce(torch.tensor([1.0, 0, 0, 1]), torch.ones(4).bool()).tolist()
    [0.1, -1.0, -1.0, 0.1]
    """
    return (correct * right - (1 - correct) * wrong) * scored
