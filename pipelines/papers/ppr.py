"""Each turn graded against principles by a language model, normalised by the outcome.

No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.data.records import Message, Problem, Trajectory
from pipelines.judges import questions
from pipelines.rlvr.common.judged import Judged
from pipelines.rlvr.common.turn_rewards import pay_turns, scored_with_turns

FIELD = "rlvr.reward"
PRINCIPLES = (
    "The last message of the conversation is one step of an agent; the answer below is that step. Grade how well it serves the user's "
    "question by these principles:\n{principles}"
)


@method(
    paper="2509.25598",
    title="Hybrid Reward Normalization for Process-supervised Non-verifiable Agentic Tasks (PPR, ReNorm)",
    checked="official code (the normalisation, by the sheet's example; the judge's question is ours)",
)
class ppr(Judged):
    """The reward of a turn is p + outcome - `beta`, with p its grade as a share of the range; that of the last turn is the outcome.

    With beta = 1 no step of a failed episode is rewarded and none of a successful one is penalised: good grades gain nothing where the
    outcome is bad. The judge is a `model` behind an endpoint or the model at a `path`, as for the reward `judge`; it reads the conversation
    up to the turn. `principles` are lines of the recipe, or the record's own in `info.principles`. A grade that cannot be parsed counts 0.
    The environment's rewards for turns are replaced; the outcome is the last turn's. Use it with `advantage: gae`.
    """

    pays_turns = True
    language_models: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        principles: Annotated[list[Annotated[str, Field(min_length=1, max_length=2000)]], Field(max_length=50)] = [],  # noqa: B006
        beta: Annotated[float, Field(ge=0, le=100)] = 1.0,
        low: Annotated[int, Field(ge=-1000, le=1000)] = 0,
        high: Annotated[int, Field(ge=-1000, le=1000)] = 10,
        **judge: Any,
    ) -> None:
        questions.check_range(low, high, FIELD)
        super().__init__(**judge)
        self.principles, self.beta, self.low, self.high = list(principles), beta, low, high

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        scored = scored_with_turns("ppr", rows, problems)
        asked = [self._questions(row, row.asked(problems)) for row in scored]
        replies = iter(self.asker.ask([question for own in asked for question in own]))
        for row, own in zip(scored, asked, strict=True):
            grades = [questions.read_grade(next(replies).text, self.low, self.high) for _ in own]
            outcome = (row.turn_reward or [0.0])[-1]
            values = renorm([grade or 0.0 for grade in grades], outcome, self.beta)
            pay_turns(row, "ppr", values)
            row.components = {
                **row.components, "outcome": outcome, "judge_unread": float(sum(grade is None for grade in grades)),
                "turn.ppr": sum(values) - outcome,
            }  # fmt: skip

    def _questions(self, row: Trajectory, problem: Problem) -> list[list[Message]]:
        """A question for each turn but the last."""
        turns = len(row.turn_reward or [])
        principles = problem.info.get("principles") or self.principles
        if not principles or not all(isinstance(line, str) for line in principles):
            raise RecipeError(
                f"{FIELD}.principles",
                f"the problem {row.uid} has no info.principles (a list of texts), and the recipe gives none.",
            )
        listed = "\n".join(f"- {line}" for line in principles)
        asked = []
        for step, before in zip(range(turns - 1), self._conversations(row, problem), strict=False):
            *earlier, last = before
            shown = replace(problem, prompt=earlier)
            instruction = PRINCIPLES.format(principles=listed) + f" This is step {step + 1} of {turns}."
            asked.append(questions.grade(shown, last["content"], low=self.low, high=self.high, instruction=instruction))
        return asked

    def _conversations(self, row: Trajectory, problem: Problem) -> list[list[Message]]:
        """The conversation up to and with each of the policy's messages."""
        messages = [*problem.prompt, *self._messages(row)]
        own = range(len(problem.prompt), len(messages))
        return [messages[: place + 1] for place in own if messages[place]["role"] == "assistant"]


def renorm(grades: Sequence[float], outcome: float, beta: float = 1.0) -> list[float]:
    """Rewards of the turns, from the grades of all but the last.

    >>> renorm([0.5, 0.75, 0.0], 1.0), renorm([0.5, 0.75, 0.0], 0.0), renorm([], 1.0)
    ([0.5, 0.75, 0.0, 1.0], [-0.5, -0.25, -1.0, 0.0], [1.0])
    """
    return [*(grade + outcome - beta for grade in grades), outcome]
