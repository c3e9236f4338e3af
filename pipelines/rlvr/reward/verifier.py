"""Every answer by its problem's verifier."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.scoring import verify


@method(paper="2411.15124", title="Tulu 3: reinforcement learning with verifiable rewards", checked="closed form")
class verifier(Reward):
    """The verifier that the record names; a rollout that an environment has scored keeps its score."""

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
