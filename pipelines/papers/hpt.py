"""Towards a Unified View of Large Language Model Post-Training.

arXiv 2509.04419. Presets: hpt_upge. Parts: hpt_gate (filter), hpt_upge (objective).

Problems that the policy cannot solve train on their demonstration, the others on rollouts.

Policy gradient on rollouts and imitation on demonstrations, in one loss.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_size, group_sum, ratio


@method(
    paper="2509.04419",
    title="Towards a Unified View of Large Language Model Post-Training (HPT's gate)",
    checked="official code, 4 cases",
    reduces_to="gate -1 keeps the rollouts, a gate as large as the group keeps the demonstrations",
    requires=(("objective", "hpt_upge"),),
    leaves_statistics=True,
    couples="group",
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


@method(
    paper="2509.04419",
    title="Towards a Unified View of Large Language Model Post-Training (UPGE, HPT)",
    checked="official code, 5 cases",
    normalise_separately=True,
    reduces_to="without demonstrations it is clip without bounds",
)
def hpt_upge(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    teacher_forced: PerToken,
    *,
    imitation: Annotated[float, Field(ge=0)] = 1.0,
) -> PerToken:
    """-rho A on the policy's tokens, -imitation * logp on teacher-forced ones, each aggregated over its own tokens.

    Both are (1 / pi_ref) A grad pi: the first with the old policy and the advantage, the second with the policy itself and A = 1. `filter:
    hpt_gate` decides which problems are imitated. The released script divides the rollouts' sum by the width of the response tensor, ours
    aggregates them as `loss_aggregation` says (with `token_mean` its gradient is that of the script times width / tokens).

    >>> import torch
    >>> lp, A = torch.tensor([[-0.2, -0.7, -0.4]]), torch.zeros(1, 3)
    >>> round(hpt_upge(lp, lp, A, torch.ones(1, 3).bool()).mean().item(), 6)
    0.433333
    >>> hpt_upge(lp, lp, A + 0.625, torch.zeros(1, 3).bool())[0, 0].item()
    -0.625
    """
    return torch.where(teacher_forced, -imitation * logp, -ratio(logp, logp_old) * advantage)
