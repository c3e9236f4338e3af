"""Problems that the policy cannot solve train on their demonstration, the others on rollouts."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_size, group_sum


@method(
    paper="2509.04419",
    title="Towards a Unified View of Large Language Model Post-Training (HPT's gate)",
    checked="official code, 4 cases",
    reduces_to="gate -1 keeps the rollouts, a gate as large as the group keeps the demonstrations",
    requires=(("objective", "hpt_upge"),),
    leaves_statistics=True,
)
def hpt_gate(
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    teacher_forced: PerToken,
    *,
    gate: Annotated[int, Field(ge=-1)] = 0,
) -> PerRow:
    """The demonstration of a group with at most `gate` correct rollouts, the rollouts of any other group.

    >>> import torch
    >>> demo = torch.tensor([0, 0, 1, 0, 0, 1]).bool()[:, None]; g = torch.tensor([0, 0, 0, 1, 1, 1])
    >>> hpt_gate(torch.tensor([0.0, 0, 1, 1, 0, 1]), g, torch.ones(6).bool(), demo).tolist()
    [False, False, True, True, True, False]
    """
    demo = teacher_forced.any(1)
    n_correct = group_sum(correct * (scored & ~demo), group)
    imitated = (n_correct <= gate) & (group_size(group, scored & demo) > 0)
    return demo == imitated
