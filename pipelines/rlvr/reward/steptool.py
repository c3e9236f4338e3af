"""Every call is paid for its success and for what it contributed to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.reward._turns import add_to_turns, calls_of, scored_with_turns


@method(
    paper="2410.07745",
    title="StepTool: A Step-grained Reinforcement Learning Framework for Tool Learning in LLMs",
    checked="official code (the rule for contributions; the last step keeps its reward, which the code multiplies by 0)",
)
class steptool(Reward):
    """Adds to each turn with calls `weight` x (share that succeeded + share that contributed); the answer's reward is the verifier's.

    A call contributes where the longest common subsequence of words of its reply and of the answer is `threshold` of the answer's words
    at least. The paper's other judge, a language model that grades contributions from 0 to 5, is not here.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(ge=0)] = 1.0,
        threshold: Annotated[float, Field(gt=0, le=1)] = 0.3,
    ) -> None:
        self.weight, self.threshold = weight, threshold

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        for row in scored_with_turns("steptool", rows, problems):
            answer = row.text.rpartition(" | ")[2]
            add_to_turns(row, "steptool", [self.weight * self._of(calls, answer) for calls in calls_of(row)])

    def _of(self, calls: Sequence[Mapping[str, Any]], answer: str) -> float:
        if not calls:
            return 0.0
        succeeded = [call["outcome"] == "ok" for call in calls]
        helped = [
            ok and common_share(call["text"], answer) >= self.threshold
            for ok, call in zip(succeeded, calls, strict=True)
        ]
        return (sum(succeeded) + sum(helped)) / len(calls)


def step_reward(success: bool, grade: float) -> float:
    """A graded step: success, and a contribution from 0 to 5 scaled to 1.

    >>> [step_reward(*step) for step in ((True, 3), (False, 1), (True, 5))]
    [1.6, 0.2, 2.0]
    """
    return float(success) + grade / 5


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
