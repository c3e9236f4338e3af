"""TTRL: Test-Time Reinforcement Learning.

Presets: ttrl.

What most answers of a group say is taken for the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines import verifiers
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.papers.common.votes import vote
from pipelines.rlvr.scoring import verify


@method(
    paper="2504.16084",
    title="TTRL: Test-Time Reinforcement Learning",
    checked="official code, 4 cases (a tied vote leaves the group unscored instead of taking the first)",
    provenance=("policy",),
)
class ttrl(Reward):
    """The record's verifier against the answer that most rollouts of the group gave: no gold answer needed.

    Of the group's rollouts the first `trains` are scored and train, the others only vote (the released script: 64 votes, 32 train). Answers
    that the verifier cannot read do not vote and get 0, whole groups of them too. Where two answers tie, the released code takes the one
    that came first; here the group is unscored, since the order of samples carries no information. `correct` stays the verdict
    against the record's answer, for the metrics alone; `components` say whether the label was correct (`label_correct`) and which share of
    the group voted for it (`majority`).

    Take it to adapt a model to questions without answers, even those that it will be tested on. It needs a verifier that reads one final
    answer (`math`, `number`, `choice`), a large group, and a policy whose most frequent answer is right more often than not: it
    sharpens what the policy believes, wrong beliefs too.
    """

    def __init__(self, *, trains: Annotated[int, Field(ge=2)] | None = None) -> None:
        self.trains = trains

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        groups: dict[int, list[Trajectory]] = {}
        for row in rows:
            if row.stop != Stop.ERROR:
                groups.setdefault(row.group, []).append(row)
        answers = verifiers.extract_answers(
            [(problems[row.uid].verifier, row.text) for own in groups.values() for row in own]
        )
        extracted = iter(answers)
        for own in groups.values():
            self._judge(own, [next(extracted) for _ in own], problems[own[0].uid])

    def _judge(self, rows: list[Trajectory], answers: list[str], problem: Problem) -> None:
        label = vote(answers)
        asked = [(problem.verifier, row.text, label, problem.info) for row in rows] if label else []
        agreed = [float(verdict.score or 0.0) for verdict in verifiers.verify_many(asked)] or [0.0] * len(rows)
        label_correct = any(row.correct for row, answer in zip(rows, answers, strict=True) if label and answer == label)
        for place, (row, score) in enumerate(zip(rows, agreed, strict=True)):
            votes_alone = self.trains is not None and place >= self.trains
            row.score = None if label is None or votes_alone else score
            row.components = {
                "verifier": float(bool(row.correct)),
                "label_correct": float(label_correct),
                "majority": answers.count(label) / len(rows) if label else 0.0,
            }
