"""A reward function of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.base.user_functions import load_function, name_of
from pipelines.contract.catalogue import method
from pipelines.contract.fields import Function
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.rlvr import scoring


@method(
    paper="https://huggingface.co/docs/trl/main/en/grpo_trainer",
    title="Reward functions with TRL's signature",
    checked="closed form",
)
class function(Reward):
    """The result of the function at `path`: `f(prompts, completions, completion_ids, answer, info, ...)` → a number per row.

    `path` is `FILE.py:NAME` or `package.module:NAME`. The function gets every rollout without an infrastructure failure; a row for which
    it returns None is unscored. `timeout_s` is the wall time that one call may take. In a list of rewards it is a term with a weight, a
    gate and a schedule; `rlvr.reward_functions` adds functions without these. `correct` stays the verifier's verdict.
    """

    def __init__(
        self,
        *,
        path: Function,
        timeout_s: Annotated[float, Field(gt=0, le=1e7)] = 600.0,
    ) -> None:
        self.label = name_of(path)
        self.call = load_function(path, "rlvr.reward.path")
        self.timeout_s = timeout_s

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score and components in place."""
        scoring.verify(rows, problems)
        asked = [row for row in rows if row.stop != Stop.ERROR]
        values = scoring.values_of(self.label, self.call, asked, problems, timeout_s=self.timeout_s)
        for row, value in zip(asked, values, strict=True):
            row.score = value
            row.components = {}
