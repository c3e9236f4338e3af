"""Information Gain-based Policy Optimization.

arXiv 2510.14967. Presets: igpo, reward_cashing. Parts: answer_log_prob (providers), igpo (advantage).

How likely the policy finds the gold answer at the start of each turn.

Each turn is paid by how much likelier it made the gold answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage
from pipelines.data import control
from pipelines.rlvr.common.scored_rows import scored_rows
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import returns_to_go, turns_to_tokens


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

    asks_policy = True

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
        passages, positions = [], []
        for row in scored_rows(tokens, columns):
            problem = self.problems[row.problem]
            answer = str(problem.info.get(self.field, "")) if self.field else problem.answer
            ids = control.encode_text(tokenizer, answer)
            for number, (start, _) in enumerate(row.turns if ids else []):
                passages.append(Passage([*row.tokens[:start], *before], ids))
                positions.append((row.index, number))
        turns = columns["turn_state"].shape[1] if "turn_state" in columns else 1
        values = torch.full((len(tokens), turns), torch.nan)
        for position, logp in zip(positions, self.scorer.log_probs(passages), strict=True):
            values[position] = logp.mean()
        columns["answer_logp"] = values


@method(
    paper="2510.14967",
    title="Information Gain-based Policy Optimization (IGPO)",
    checked="official code (read; the two normalisations are the paper's, at second hand)",
    couples="group",
    zero_variance_groups="learns",
    group_of_one="the turns of one episode are compared with each other",
    provenance=("policy",),
)
def igpo(
    reward: PerRow,
    answer_logp: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    gain: Literal["probability", "log_probability"] = "probability",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Turn k gets p_{k+1} - p_k, p_k = exp(mean log pi(gold answer | history before turn k)); the last turn gets the reward.

    Gains are standardised over all turns of the group, rewards over its rows; a turn's tokens get its discounted return. Without gains
    (one turn, no gold answer) the reward alone remains. The released code works token by token, does not carry returns across
    observations and subtracts the group's mean per position; here credit crosses turns, as in the paper.

    >>> import torch
    >>> p = torch.tensor([[0.10, 0.30, 0.25], [0.10, 0.12, 0.40]]); k = torch.arange(3).expand(2, 3)
    >>> one = torch.ones(2).bool(); r = torch.tensor([1.0, 0.0])
    >>> A = igpo(r, p.log(), k, torch.zeros(2).long(), one, k >= 0, discount=0.9)
    >>> [[round(v, 4) for v in row] for row in A.tolist()]
    [[0.19, -0.4223, 0.7071], [-0.1932, 0.4549, -0.7071]]
    """
    likelihood = answer_logp.double().exp() if gain == "probability" else answer_logp.double()
    gains = torch.nn.functional.pad(likelihood, (0, 1), value=torch.nan)[:, 1:] - likelihood
    gained = scored[:, None] & gains.isfinite()  # not of a last turn, after which there is no value
    turn_group = group[:, None].expand_as(gained)
    paid = standardised(gains.nan_to_num(0.0).flatten(), turn_group.flatten(), gained.flatten(), eps=eps).view_as(gains)
    last = torch.arange(gains.shape[1]) == turn.amax(1, keepdim=True)
    outcome = standardised(reward, group, scored, eps=eps)[:, None]
    return turns_to_tokens(returns_to_go(torch.where(last, outcome, paid), discount), turn) * mask
