"""A bonus for correct answers within a length."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="2505.15612",
    title="Learn to Reason Efficiently with Adaptive Length-based Reward Shaping (LASER)",
    checked="official code, 4 cases",
)
def laser(
    reward: PerRow,
    correct: PerRow,
    length: PerRow,
    *,
    target: Annotated[float, Field(gt=0)] = 4096,
    bonus: Annotated[float, Field(ge=0)] = 0.5,
) -> PerRow:
    """reward + bonus where the row is correct and at most `target` tokens long.

    >>> import torch
    >>> r, n = torch.tensor([1.0, 1, -0.5]), torch.tensor([4000.0, 5000, 5000])
    >>> laser(r, (r > 0).float(), n).tolist()
    [1.5, 1.0, -0.5]
    """
    return reward + bonus * ((correct > 0) & (length <= target))
