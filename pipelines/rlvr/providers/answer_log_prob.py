"""How likely the policy finds the gold answer at the start of each turn."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage
from pipelines.data import control
from pipelines.rlvr.providers._rows import scored_rows


@method(
    paper="2510.14967",
    title="Information Gain-based Policy Optimization: log-probability of the ground truth per turn",
    checked="official code (read; scrl/llm_agent/generation.py)",
    makes=("answer_logp",),
)
class answer_log_prob(Provider):
    """Mean log-probability of the gold answer's tokens, teacher-forced where the policy's turn begins, after the text `before`.

    The released code puts "Now there's enough information to answer", the end of the thoughts and an opening answer tag before it, and
    takes the probability of the answer's tokens alone; set `before` to what precedes an answer in your data. The gold answer is the
    record's, or its `info` field of the name `field`.
    """

    def __init__(
        self, *, before: Annotated[str, Field(max_length=2000)] = "", field: Annotated[str, Field(max_length=200)] = ""
    ) -> None:
        self.before, self.field = before, field

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer and the problems."""
        self.scorer, self.problems = context.scorer, context.problems

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`answer_logp` [B, S]."""
        tokenizer = self.scorer.tokenizer()
        before = control.encode_text(tokenizer, self.before)
        passages, places = [], []
        for row in scored_rows(tokens, columns):
            problem = self.problems[row.problem]
            answer = str(problem.info.get(self.field, "")) if self.field else problem.answer
            ids = control.encode_text(tokenizer, answer)
            for number, (start, _) in enumerate(row.turns if ids else []):
                passages.append(Passage([*row.tokens[:start], *before], ids))
                places.append((row.index, number))
        turns = columns["turn_state"].shape[1] if "turn_state" in columns else 1
        values = torch.full((len(tokens), turns), torch.nan)
        for place, logp in zip(places, self.scorer.log_probs(passages), strict=True):
            values[place] = logp.mean()
        columns["answer_logp"] = values
