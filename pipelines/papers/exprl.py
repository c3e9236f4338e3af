"""ExpRL: Exploratory RL for LLM Mid-Training.

arXiv 2606.17024. Presets: clip_delta, exprl, pspo_wrs. Parts: exprl (reward), exprl (advantage).

A language model that sees the gold answer grades the reasoning up to the end of each step.

What each step added to a judge's grade of the reasoning so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.data.records import Message, Problem, Role, Stop, Trajectory
from pipelines.judges import asker, questions
from pipelines.rlvr.common.judged import Judged
from pipelines.rlvr.common.step_scores import split_steps
from pipelines.rlvr.ops import group_mean, row_mean
from pipelines.rlvr.ops_turns import carried_values, turns_to_tokens
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward"
LOW, HIGH = 1, 5
"""Grades."""
Form = Literal["smooth", "semi_smooth", "extremes", "clipped"]
KNOWN = {"semi_smooth": {1: 0.0, 4: 0.8, 5: 1.0}, "extremes": {1: 0.0, 5: 1.0}}
"""Form → what its grades are worth; others leave the row unscored."""


@method(
    paper="2606.17024",
    title="ExpRL: Exploratory RL for LLM Mid-Training",
    checked="official code (read: grades, forms, truncated rows; the judge's question is ours)",
    makes=("turn", "step_potential"),
)
class exprl(Judged):
    """Grades from 1 to 5 of how strongly the reasoning up to the end of each step leads to the reference, which the policy never sees.

    A step ends with `separator`; an empty one belongs to the next, and steps beyond `most` to the last one, so `most: 1` grades the whole
    answer (the outcome form, with `advantage: grpo`). `form` says what a grade s is worth: `smooth` (s - 1) / 4, `clipped` 1 above 3 and
    else 0, `extremes` 0 and 1 for 1 and 5 alone, `semi_smooth` also 0.8 for 4. The values are the column `step_potential`, for `advantage:
    exprl`, which makes differences of them; the row's score is the last one. A grade that cannot be parsed, or has no value, leaves the
    whole row unscored. A truncated row has the value 0 at every step, without a question to the judge. The reference is the record's
    `info.solution`, or else its answer. The judge is a `model` behind an endpoint or the model at a `path`, as for the reward `judge`, and
    reads the reasoning too. Components: `steps`, `judge_unread`, `judge_tokens`, `judge_seconds`.
    """

    language_models: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        instruction: asker.Instruction = "",
        separator: Annotated[str, Field(min_length=1, max_length=40)] = "\n\n",
        most: Annotated[int, Field(ge=1, le=1000)] = 16,
        form: Form = "smooth",
        max_tokens: asker.MaxTokens = 2048,
        **judge: Any,
    ) -> None:
        self.instruction, self.separator, self.most, self.form = instruction, separator, most, form
        super().__init__(max_tokens=max_tokens, **judge)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components, `turn` and `potential` in place.

        Raises:
            RecipeError: a row has turns.
        """
        verify(rows, problems)
        graded = [row for row in rows if row.stop != Stop.ERROR and Role.POLICY in row.role]
        if any(row.turn is not None for row in graded):
            raise RecipeError(
                FIELD,
                "exprl grades the steps of single answers, and the rollout has turns or steps of its own",
                "Use reward: ppr, which grades turns, or another rollout.",
            )
        prefixes = [split_steps(row, self._decode, self.separator, most=self.most) for row in graded]
        asked = [
            [] if row.stop == Stop.LENGTH else [self._question(row.asked(problems), text) for text in texts]
            for row, texts in zip(graded, prefixes, strict=True)
        ]
        replies = iter(self.asker.ask([question for own in asked for question in own]))
        for row in rows:
            row.score = None
        for row, texts, own in zip(graded, prefixes, asked, strict=True):
            answers = [next(replies) for _ in own]
            values = [self.worth(questions.read_grade(reply.text, LOW, HIGH)) for reply in answers]
            known = [value for value in values if value is not None] if own else [0.0] * len(texts)
            row.turn_state = list(range(len(texts)))
            row.potential = known if len(known) == len(texts) else None
            row.score = row.potential[-1] if row.potential else None
            row.components = row.components | {
                "steps": float(len(texts)), "judge_unread": float(sum(value is None for value in values)),
                "judge_tokens": float(sum(reply.tokens for reply in answers)),
                "judge_seconds": sum(reply.seconds for reply in answers),
            }  # fmt: skip

    def worth(self, share: float | None) -> float | None:
        """What a grade is worth, from 0 to 1; None where it is not known.

        Args:
            share: the grade's place between 1 and 5, from 0 to 1.

        >>> [exprl(model="m", form=form).worth(0.75) for form in ("smooth", "clipped", "semi_smooth", "extremes")]
        [0.75, 1.0, 0.8, None]
        """
        if share is None or self.form == "smooth":
            return share
        if self.form == "clipped":
            return float(share > 0.5)
        return KNOWN[self.form].get(LOW + (HIGH - LOW) * share)  # type: ignore[call-overload]

    def _question(self, problem: Problem, text: str) -> list[Message]:
        shown = replace(problem, answer=str(problem.info.get("solution") or problem.answer))
        return questions.prefix(shown, text, low=LOW, high=HIGH, instruction=self.instruction)


@method(
    paper="2606.17024",
    title="ExpRL: Exploratory RL for LLM Mid-Training",
    checked="official code (read; a single step is 0 for `delta`, where the released code keeps its grade, and means are over tokens, "
    "where it divides by the padded length too)",
    couples="group",
    couples_batch_with=(("baseline", "batch"),),
    group_of_one="compares steps with each other",
    zero_variance_groups="learns",
)
def exprl_advantage(
    step_potential: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    baseline: Literal["delta", "end", "group", "batch"] = "delta",
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0,
) -> PerToken:
    """Every token of step k gets `weight` times, with u_k the value of the reasoning up to the end of step k and K the last one:

        delta:  u_k - u_{k-1}, u_0 = 0, and less u_K in the first step, so that a row's steps add up to 0
        end:    u_k - u_K
        group:  u_k less the group's mean over rows of their means over tokens; batch: less the batch's

    A step without a value keeps the one before it. The values come from `reward: exprl`, or from `rollout: spae`.

    >>> import torch
    >>> u = torch.tensor([[0.25, 0.75, 0.5, 1.0]]); k = torch.arange(4)[None]; one = torch.ones(1).bool()
    >>> exprl_advantage(u, k, one.long(), one, k >= 0).tolist(), exprl_advantage(u, k, one.long(), one, k >= 0, baseline="end").tolist()
    ([[-0.75, 0.5, -0.25, 0.5]], [[-0.75, -0.25, -0.5, 0.0]])
    """
    values = carried_values(step_potential)
    last = values[:, -1:]
    if baseline == "delta":
        differences = values.diff(dim=1, prepend=torch.zeros_like(last))
        differences[:, :1] -= last
        result = turns_to_tokens(differences, turn)
    elif baseline == "end":
        result = turns_to_tokens(values - last, turn)
    else:
        per_token = turns_to_tokens(values, turn)
        inside = mask & (turn >= 0)
        everywhere = group if baseline == "group" else torch.zeros_like(group)
        mean = group_mean(row_mean(per_token, inside), everywhere, scored & inside.any(1))
        result = (per_token - mean[:, None]) * inside
    return (weight * result * (mask & scored[:, None])).float()
