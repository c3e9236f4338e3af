"""Every answer by its problem's verifier, or by another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from pipelines import verifiers
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import UNSCORED, Problem, Trajectory
from pipelines.rlvr.scoring import verify


@method(paper="2411.15124", title="Tulu 3: reinforcement learning with verifiable rewards", checked="closed form")
class verifier(Reward):
    """The verifier that the record names; a rollout that an environment has scored keeps its score.

    With `verifier` (its name) that verifier scores every completion instead: `answer`, if given, replaces the
    record's, and `info` overrides the record's. This adds, for example, a format check beside the answer's: `{kind: verifier, verifier:
    regex, answer: "<think>.*</think>.*"}`. `correct` stays the verdict of the record's own.
    """

    def __init__(
        self,
        *,
        verifier: Annotated[str | None, Field(pattern=r"^\w+$")] = None,
        answer: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        if verifier is not None and verifier not in verifiers.known():
            hint = did_you_mean(verifier, verifiers.known())
            raise RecipeError("rlvr.reward.verifier", f"no verifier called {verifier!r}", hint)
        if verifier is None and (answer is not None or info):
            raise RecipeError("rlvr.reward.verifier", "answer and info are those of another verifier", "Name it.")
        if verifier is not None and (answer is not None or info):
            why = verifiers.fault(verifier, answer, info or {})
            if why:
                raise RecipeError(
                    "rlvr.reward",
                    f"the verifier {verifier} cannot work with this answer or info: {why}",
                    "Mend it there.",
                )
        self.other, self.answer, self.info = verifier, answer, dict(info or {})
        self.rescores, self.keeps_score = verifier is not None, verifier is None

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        if self.other is None:
            return
        verdicts = [(row.correct, row.status) for row in rows]
        for row in rows:
            row.score, row.status, row.components = None, UNSCORED, {}
        verify(rows, {uid: self._other(problem) for uid, problem in problems.items() if uid in {r.uid for r in rows}})
        for row, (correct, status) in zip(rows, verdicts, strict=True):
            row.correct = correct
            row.status = row.status if row.score is None else status

    def _other(self, problem: Problem) -> Problem:
        answer = problem.answer if self.answer is None else self.answer
        return replace(problem, verifier=str(self.other), answer=answer, info={**problem.info, **self.info})
