"""A reward model's score of the reasoning up to the end of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data import chat, control
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.rlvr.common.step_scores import sigmoid, split_steps
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward.model"
SEPARATOR = "\n\n"
"""Between steps, where neither the recipe nor the model says it."""


@method(
    paper="2312.08935",
    title="Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations (a process reward model's step scores)",
    checked="closed form (a step's score is the model's own score of the prefix)",
    makes=("turn", "step_potential"),
)
class process_model(Reward):
    """p_k = sigmoid(s_k), s_k the reward model's score of the prompt and the reasoning up to the end of step k; of several heads the mean.

    A step ends with `separator`; one of fewer than `shortest` tokens belongs to the next, at the end to the one before, and steps beyond
    `most` to the last one. The values are the column `step_potential`, for shaping by steps (`clip_delta`, `pspo_wrs`) and for the
    advantages that read steps; the row's own score is the last one. Use it beside the verifier with `weight: 0.0` where only the steps are
    wanted. `model` is a stage of kind reward_model or a checkpoint for sequence classification with one label by its path, as for the
    reward `model`; one with the policy's tokenizer and template reads the rollout's own token ids, any other the text. Train it with
    `step_labels`: such a model is trained at the ends of steps, and its separator is the default here (otherwise an empty line). A row with
    a prefix beyond the model's context is unscored. `correct` stays the verifier's verdict. Component: `steps`.
    """

    label = "process_model"
    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(
        self,
        *,
        model: Annotated[str, Field(min_length=1, max_length=4096)],
        separator: Annotated[str | None, Field(min_length=1, max_length=40)] = None,
        most: Annotated[int, Field(ge=1, le=1000)] = 64,
        shortest: Annotated[int, Field(ge=1, le=1000)] = 1,
    ) -> None:
        self.path, self.own_separator, self.most, self.shortest = model, separator, most, shortest

    def connect(self, scorer: Scorer) -> None:
        """Load the reward model.

        Raises:
            RecipeError: it writes a critique first, so a prefix has no score.
        """
        self.tokenizer = scorer.tokenizer()
        self.member = scorer.reward_model(self.path, FIELD)
        self.separator = self.own_separator or self.member.separator or SEPARATOR
        if self.member.critiques:
            raise RecipeError(
                FIELD,
                f"{self.path} writes a critique before it scores, so a prefix of an answer has no score",
                "Name a reward model without `critique`.",
            )

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components, `turn` and `potential` in place.

        Raises:
            RecipeError: a row has turns.
        """
        verify(rows, problems)
        asked = [row for row in rows if row.stop != Stop.ERROR and Role.POLICY in row.role]
        if any(row.turn is not None for row in asked):
            raise RecipeError(
                "rlvr.reward",
                "process_model scores the steps of single answers, and the rollout has turns or steps of its own",
                "Use another rollout, or reward: ppr, which grades turns.",
            )
        for row in rows:
            row.score = None
        texts = [
            split_steps(row, self._decode, self.separator, most=self.most, shortest=self.shortest) for row in asked
        ]
        prefixes = [
            prefix
            for row, own in zip(asked, texts, strict=True)
            for prefix in self._prefixes(row, own, row.asked(problems))
        ]
        if not prefixes:
            return
        scores = iter(
            self.member.score([ids for ids, _ in prefixes], [start for _, start in prefixes]).mean(1).tolist()
        )
        for row, own in zip(asked, texts, strict=True):
            values = [next(scores) for _ in own]
            row.turn_state = list(range(len(own)))
            known = all(value == value for value in values)
            row.potential = [sigmoid(value) for value in values] if known else None
            row.score = row.potential[-1] if row.potential else None
            row.components = row.components | {"steps": float(len(own))}

    def _decode(self, tokens: Sequence[int]) -> str:
        return control.decode_text(self.tokenizer, tokens)

    def _prefixes(self, row: Trajectory, texts: list[str], problem: Problem) -> list[tuple[list[int], int]]:
        """(token ids up to the end of each step, index of the answer's first token), as the model reads them."""
        if not self.member.reads(self.tokenizer):
            own, last = self.member.tokenizer, len(texts) - 1
            # One that was trained on steps has seen no end token after a step that others follow.
            ended = [
                self.member.separator is None or (i == last and row.stop != Stop.LENGTH) for i in range(len(texts))
            ]
            return [
                chat.render_answer(own, problem.prompt, text, problem.uid, problem.tools, ended=end)
                for text, end in zip(texts, ended, strict=True)
            ]
        assert row.turn is not None
        start = next(i for i, role in enumerate(row.role) if role != Role.PROMPT)
        ends = [max(i for i, step in enumerate(row.turn) if step == k) for k in range(len(texts))]
        return [(row.tokens[: end + 1], start) for end in ends]
