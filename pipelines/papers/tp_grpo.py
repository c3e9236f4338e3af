"""Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning Model More Efficient Math Learner.

arXiv 2507.23317. Presets: tp_grpo. Parts: gen_prm (reward), tp_grpo (advantage).

A language model reads a whole answer and says of each step whether it is correct.

Outcome advantages, less in the incorrect thoughts of right answers, and none in the correct thoughts of wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from math import nan
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.judges import asker, questions
from pipelines.recipe.slots import bound_list
from pipelines.rlvr.common.judged import Judged
from pipelines.rlvr.common.step_scores import split_steps
from pipelines.rlvr.ops import group_mean, standardised
from pipelines.rlvr.ops_turns import turns_taken, turns_to_tokens
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward"


def _labels_are_read(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """Something reads the labels: they are all that the reward adds to the verifier's score."""
    methods = [each for each in bound_list(bound) if each.slot != "rlvr.providers"]
    if not any("step_potential" in method.needs for method in methods):
        raise RecipeError(
            FIELD,
            f"{part.name} labels steps (step_potential), which nothing here reads, and its score is the verifier's",
            "Use reward: verifier, or an advantage that reads the labels, such as tp_grpo.",
        )


@method(
    paper="2507.23317",
    title="Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning Model More Efficient Math Learner (step labels)",
    checked="reconstructed (its abstract and notes of the paper; the judge's question and where steps end are ours)",
    makes=("turn", "step_potential"),
    provenance=("rule", "judge"),
    check=_labels_are_read,
)
class gen_prm(Judged):
    """The verifier's score, and labels of the steps for `advantage: tp_grpo`: 1 for a correct step, 0 for an incorrect one.

    The judge is asked once per answer, is given the verifier's verdict on the result, and need not solve the problem: a step is incorrect
    where a later one retracts or abandons it, or where the reasoning breaks. The labels are the column `step_potential`; consecutive steps
    with the same label are a thought. A step ends with `separator`; an empty one belongs to the next, and steps beyond `most` to the last
    one. Where a label is missing or cannot be read the row has none, and is trained by its outcome alone. The judge is a `model` behind an
    endpoint or the model at a `path`, as for the reward `judge`, and reads the reasoning too. Components: `steps`, `thoughts`,
    `steps_correct` (share), `judge_unread`, `judge_tokens`, `judge_seconds`.
    """

    language_models: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        instruction: asker.Instruction = "",
        separator: Annotated[str, Field(min_length=1, max_length=40)] = "\n\n",
        most: Annotated[int, Field(ge=1, le=1000)] = 64,
        max_tokens: asker.MaxTokens = 4096,
        timeout_s: asker.Timeout = 300.0,
        **judge: Any,
    ) -> None:
        self.instruction, self.separator, self.most = instruction, separator, most
        super().__init__(max_tokens=max_tokens, timeout_s=timeout_s, **judge)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components, `turn` and `potential` in place.

        Raises:
            RecipeError: a row has turns.
        """
        verify(rows, problems)
        labelled = [row for row in rows if row.stop != Stop.ERROR and Role.POLICY in row.role and row.score is not None]
        if any(row.turn is not None for row in labelled):
            raise RecipeError(
                FIELD,
                "gen_prm labels the steps of single answers, and the rollout has turns or steps of its own",
                "Use reward: ppr, which grades turns, or another rollout.",
            )
        texts = [split_steps(row, self._decode, self.separator, most=self.most) for row in labelled]
        steps = [[after[len(before) :] for before, after in pairwise(["", *own])] for own in texts]
        asked = [
            questions.steps(row.asked(problems), own, correct=bool(row.correct), instruction=self.instruction)
            for row, own in zip(labelled, steps, strict=True)
        ]
        for row, own, reply in zip(labelled, steps, self.asker.ask(asked), strict=True):
            labels = questions.read_steps(reply.text, len(own))
            row.turn_state = list(range(len(own)))
            row.potential = [nan] * len(own) if labels is None else [float(label) for label in labels]
            known = labels or []
            row.components = row.components | {
                "steps": float(len(own)), "judge_unread": float(labels is None), "judge_tokens": float(reply.tokens),
                "judge_seconds": reply.seconds,
                **({"thoughts": float(thoughts(known)), "steps_correct": sum(known) / len(known)} if known else {}),
            }  # fmt: skip


def thoughts(labels: list[bool]) -> int:
    """How many runs of equal labels there are.

    >>> thoughts([True, True, False, True]), thoughts([])
    (3, 0)
    """
    return len(list(groupby(labels)))


@method(
    paper="2507.23317",
    title="Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning Model More Efficient Math Learner (TP-GRPO)",
    checked="reconstructed (its abstract and notes of the paper, by the sheet's example; the penalty's factor is ours)",
    couples="group",
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
