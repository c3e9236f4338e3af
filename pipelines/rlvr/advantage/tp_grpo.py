"""Outcome advantages, less in the incorrect thoughts of right answers, and none in the correct thoughts of wrong ones."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import group_mean, standardised
from pipelines.rlvr.ops_turns import turns_taken, turns_to_tokens


@method(
    paper="2507.23317",
    title="Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning Model More Efficient Math Learner (TP-GRPO)",
    checked="reconstructed (its abstract and notes of the paper, by the sheet's example; the penalty's factor is ours)",
    group_of_one="incorrect thoughts of a right answer are charged, whatever it is compared with",
    zero_variance_groups="learns",
    reduces_to="with every label as the outcome, or none, it is grpo",
)
def tp_grpo(
    reward: PerRow,
    correct: PerRow,
    step_potential: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    penalty: Annotated[float, Field(ge=0, le=1000)] = 0.5,
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.5,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """With A = (r - mean_group r) / (std_group r + eps), a the share of correct rows in the group, a step correct from `threshold` on:

        correct answer:    A in correct steps, A - penalty a in incorrect ones
        incorrect answer:  A in incorrect steps, 0 in correct ones

    The more often the policy solves the problem, the more an incorrect step costs; while it rarely does, exploring costs little. The
    penalty is not standardised. Consecutive steps with the same label get the same and are one thought. A row in which a step has no label
    gets A throughout. In a group whose answers are all correct A is 0, and incorrect steps are still penalised. Labels come from `reward:
    gen_prm`; step scores of a process reward model also work.

    >>> import torch
    >>> r, g, one = torch.tensor([1.0, 1, 0, 0]), torch.zeros(4).long(), torch.ones(4).bool()
    >>> labels = torch.tensor([[1.0, 0, 1], [1, 1, 1], [1, 0, 0], [torch.nan, 0, 0]]); k = torch.arange(3).expand(4, 3)
    >>> for row in tp_grpo(r, r, labels, k, g, one, k >= 0).tolist(): print([round(v, 6) for v in row])
    [0.866024, 0.616024, 0.866024]
    [0.866024, 0.866024, 0.866024]
    [0.0, -0.866024, -0.866024]
    [-0.866024, -0.866024, -0.866024]
    """
    outcome = standardised(reward, group, scored, scale=True, eps=eps)[:, None].double()
    accuracy = group_mean(correct, group, scored)[:, None]
    taken = turns_taken(turn, mask, step_potential.shape[1])
    labelled = (step_potential.isfinite() | ~taken).all(1)[:, None] & (turn >= 0)
    agrees = turns_to_tokens(step_potential >= threshold, turn).bool() == (correct > 0)[:, None]
    other = torch.where((correct > 0)[:, None], outcome - penalty * accuracy, 0.0)
    return (torch.where(agrees | ~labelled, outcome, other) * (mask & scored[:, None])).float()
