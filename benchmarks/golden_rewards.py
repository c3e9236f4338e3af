"""What our rewards make of the inputs of a golden case; see `benchmarks.golden_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipelines.data.records import Problem, Stop, Trajectory

Case = dict[str, Any]


def _problem(number: int) -> Problem:
    return Problem(uid=f"{number:032x}", prompt=[], answer="", verifier="exact", source="", licence="")


def _row(problem: int, group: int, text: str) -> Trajectory:
    return Trajectory(
        uid=f"{problem:032x}", group=group, tokens=[1], role=[3], logp_old=[0.0], max_tokens=1, stop=Stop.END, version=0,
        text=text,
    )  # fmt: skip


def _scores(rows: Sequence[Trajectory]) -> list[float]:
    return [-1.0 if row.score is None else row.score for row in rows]


def co_reward(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Answers to two wordings, as rows whose completion is the answer; unscored is -1."""
    from pipelines.papers.co_reward import co_reward

    wordings = case["inputs"]["said"]
    problems = {problem.uid: problem for problem in map(_problem, range(len(wordings[0])))}
    rows = [
        [[_row(p, 2 * p + w, answer) for answer in wordings[w][p]] for p in range(len(wordings[w]))] for w in range(2)
    ]
    co_reward().score([row for wording in rows for problem in wording for row in problem], problems)
    return {"reward": [[_scores(problem) for problem in wording] for wording in rows]}


def ttrl(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Answers of groups, as rows whose completion is the answer; unscored is -1."""
    from pipelines.papers.ttrl import ttrl

    groups = case["inputs"]["said"]
    rows = [[_row(p, p, answer) for answer in answers] for p, answers in enumerate(groups)]
    problems = {problem.uid: problem for problem in map(_problem, range(len(groups)))}
    ttrl().score([row for own in rows for row in own], problems)
    return {"reward": [_scores(own) for own in rows]}


def of_logits(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The mean over a row's tokens of what the reward makes of their logits."""
    from pipelines.papers.intuitor import self_certainty
    from pipelines.papers.rent import rent

    part = {"self_certainty": self_certainty, "rent": rent}[case["method"]]
    logits, mask = torch.tensor(case["inputs"]["logits"], dtype=dtype), torch.tensor(case["inputs"]["mask"])
    values: Tensor = part.of_logits(logits.flatten(0, 1)).view(mask.shape)
    return {"reward": (values * mask).sum(1) / mask.sum(1)}


def rlpr(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The reward of log-probabilities with and without the reasoning."""
    from pipelines.papers.rlpr import debiased

    after, before = (torch.tensor(case["inputs"][f"logp_{name}"], dtype=dtype) for name in ("after", "before"))
    mask = torch.tensor(case["inputs"]["mask"])
    return {"reward": [debiased(a[m], b[m]) for a, b, m in zip(after, before, mask, strict=True)]}
