"""Every call is paid for its success and for what it contributed to the answer.

Presets: steptool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.data.chat import after_thinking
from pipelines.data.records import Message, Problem, Trajectory
from pipelines.judges import questions
from pipelines.rlvr.common.judged import Judged
from pipelines.rlvr.common.turn_rewards import add_to_turns, calls_of, scored_with_turns

FIELD = "rlvr.reward"
HIGHEST = 5
CONTRIBUTION = (
    "The conversation is the whole of an agent's work, and its last message the agent's final answer. The answer below is step {step} of "
    "that work: the tools that it called, and what they gave back. Grade how much this step contributed to the final answer."
)


@method(
    paper="2410.07745",
    title="StepTool: A Step-grained Reinforcement Learning Framework for Tool Learning in LLMs",
    checked="official code (the rule for contributions; the last step keeps its reward, which the code multiplies by 0; the judge's "
    "question is ours)",
)
class steptool(Judged):
    """Adds to each turn with calls `weight` x (share that succeeded + contribution); the answer's reward is the verifier's.

    A call contributes where the longest common subsequence of words of its reply and of the answer is `threshold` of the answer's words at
    least; the turn's contribution is the share of such calls. With a judge (`model` behind an endpoint, or the model at `path`, as for the
    reward `judge`) it is the judge's grade of the turn from 0 to 5, as a share of 5: it reads the whole episode, and then the turn's calls
    with their replies. A grade that cannot be parsed counts 0 (`judge_unread`).
    """

    pays_turns = reads_calls = True
    judge_required = False
    language_models: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(ge=0)] = 1.0,
        threshold: Annotated[float, Field(gt=0, le=1)] = 0.3,
        **judge: Any,
    ) -> None:
        self.weight, self.threshold = weight, threshold
        super().__init__(**judge)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        scored = scored_with_turns("steptool", rows, problems)
        contributions = self._graded(scored, problems) if self.asker.named else [self._in_answer(row) for row in scored]
        for row, own in zip(scored, contributions, strict=True):
            paid = [
                self.weight * (sum(call["outcome"] == "ok" for call in calls) / len(calls) + contribution)
                if calls
                else 0.0
                for calls, contribution in zip(calls_of(row), own, strict=True)
            ]
            add_to_turns(row, "steptool", paid)

    def _in_answer(self, row: Trajectory) -> list[float]:
        """Share of each turn's calls whose reply is in the answer; a call that failed is in none."""
        answer = after_thinking(row.text.rpartition(" | ")[2])
        return [
            sum(call["outcome"] == "ok" and common_share(call["text"], answer) >= self.threshold for call in calls)
            / max(1, len(calls))
            for calls in calls_of(row)
        ]

    def _graded(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> list[list[float]]:
        """The judge's grade of each turn with calls, from 0 to 1; 0 for turns without any."""
        asked = [self._questions(row, row.asked(problems)) for row in rows]
        replies = iter(self.asker.ask([question for own in asked for question in own if question]))
        grades = []
        for row, own in zip(rows, asked, strict=True):
            read = [questions.read_grade(next(replies).text, 0, HIGHEST) if question else 0.0 for question in own]
            row.components = {**row.components, "judge_unread": float(sum(grade is None for grade in read))}
            grades.append([grade or 0.0 for grade in read])
        return grades

    def _questions(self, row: Trajectory, problem: Problem) -> list[list[Message]]:
        """A question for each turn; [] for one without calls."""
        episode = replace(problem, prompt=[*problem.prompt, *self._messages(row)])
        asked: list[list[Message]] = []
        for number, calls in enumerate(calls_of(row)):
            step = "\n".join(
                f"{call['name']} {json.dumps(call['arguments'])} -> {call['outcome']}: {call['text']}" for call in calls
            )
            instruction = CONTRIBUTION.format(step=number + 1)
            asked.append(questions.grade(episode, step, low=0, high=HIGHEST, instruction=instruction) if calls else [])
        return asked


def common_share(reply: str, answer: str) -> float:
    """Words of the longest common subsequence, as a share of the answer's.

    >>> common_share("temp 21 C", "it is 21 C now")
    0.4
    """
    words, other = answer.split(), reply.split()
    if not words:
        return 0.0
    longest = [0] * (len(other) + 1)
    for word in words:
        before = 0
        for i, candidate in enumerate(other, 1):
            before, longest[i] = longest[i], before + 1 if word == candidate else max(longest[i], longest[i - 1])
    return longest[-1] / len(words)
