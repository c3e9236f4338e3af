"""Information-Driven Policy Optimization for User-Centric Agents (InfoPO).

arXiv 2603.00656. Presets: infopo. Parts: feedback_gain (providers), infopo (credit).

What an environment's answer tells the policy: its next action with that answer, and with it hidden.

Turns whose feedback told the policy something are credited, most where the outcomes of a group say nothing.
"""

from __future__ import annotations

from math import nan
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, PerTurn, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage
from pipelines.data import chat
from pipelines.data.records import common_length
from pipelines.rlvr.common.scored_rows import Row, scored_rows
from pipelines.rlvr.ops import group_std, standardised
from pipelines.rlvr.ops_turns import turns_to_tokens

COLUMNS = {
    "feedback_gain": Column(
        "B S",
        "float32",
        Phase.ADVANTAGE,
        "the policy, with the turn's feedback hidden",
        "By how much the turn's feedback raises the mean log-probability of the next turn's tokens; NaN where "
        "no turn follows.",
        fill=nan,
        part=True,
        hint="Compare with hidden feedback: providers: [feedback_gain].",
        span=(-0.5, 0.5),
    ),
}


@method(
    paper="2603.00656",
    title="InfoPO: information gain of a turn's feedback, by hiding it",
    checked="official code (read; it overwrites what the template puts around the feedback, too)",
    makes=("feedback_gain",),
)
class feedback_gain(Provider):
    """Mean over the next turn's tokens of log pi(token | history) - log pi(token | history with this turn's feedback hidden).

    The feedback is the text between two turns, without what the chat template puts around it. It is replaced by `placeholder`, cut to the
    same number of tokens or with its last token repeated, so that no position changes.
    """

    asks_policy = True

    def __init__(
        self, *, placeholder: Annotated[str, Field(min_length=1, max_length=2000)] = "No information found."
    ) -> None:
        self.placeholder = placeholder

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer."""
        self.scorer = context.scorer

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`feedback_gain` [B, S]."""
        tokenizer = self.scorer.tokenizer()
        wrapped = [chat.reply_tokens(tokenizer, self.placeholder, with_end=end) for end in (False, True)]
        neutral = tokenizer(self.placeholder, add_special_tokens=False)["input_ids"]
        passages, positions = [], []
        for row in scored_rows(tokens, columns):
            for number in range(len(row.turns) - 1):
                start, end = row.turns[number + 1]
                text = row.tokens[start:end]
                hidden = _hidden(row, number, wrapped, neutral)
                passages += [Passage(row.tokens[:start], text), Passage(hidden, text)]
                positions.append((row.index, number))
        values = torch.full(columns["turn_state"].shape, torch.nan)
        scored = self.scorer.log_probs(passages)
        for position, real, masked in zip(positions, scored[::2], scored[1::2], strict=True):
            values[position] = (real - masked).mean()
        columns["feedback_gain"] = values


def _hidden(row: Row, number: int, wrapped: list[list[int]], neutral: list[int]) -> list[int]:
    """The history in front of turn `number` + 1 with the feedback of turn `number` replaced.

    Args:
        wrapped: the placeholder as a reply, without and with an end token in front: what the feedback shares with one of them at its
            ends is the template's.
        neutral: the placeholder's own tokens.
    """
    start, end = row.turns[number][1], row.turns[number + 1][0]
    feedback = row.tokens[start:end]
    front = max(common_length([feedback, reply]) for reply in wrapped)
    back = min(len(feedback) - front, max(common_length([feedback[::-1], reply[::-1]]) for reply in wrapped))
    size = len(feedback) - front - back
    filler = [*neutral, *neutral[-1:] * size][:size]
    return [*row.tokens[: start + front], *filler, *row.tokens[end - back : end]]


@method(
    paper="2603.00656",
    title="Information-Driven Policy Optimization for User-Centric Agents (InfoPO)",
    checked="official code, 3 cases (whole preset)",
    couples="group",
    provenance=("policy",),
)
def infopo(
    advantage: PerToken,
    reward: PerRow,
    feedback_gain: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    step: int,
    *,
    beta: Annotated[float, Field(ge=0)] = 0.1,
    decay: Annotated[float, Field(ge=0)] = 0.0,
    temperature: Annotated[float, Field(gt=0)] = 0.05,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A + beta e^(-decay step) gate A_info, with gate = sigmoid(-deviation of the group's rewards / temperature).

    A turn's tokens share its gain (`feedback_gain` / tokens), and A_info is that standardised over the group's tokens that have one. Where
    outcomes differ the gate is closed; where they are all the same it is one half. The paper's scale min(1, max(std A, 1) / std A_info) is
    1, because what is standardised group by group deviates by no more than that. It decays by epochs, here by steps.

    >>> import torch
    >>> g = torch.tensor([[3.0, torch.nan], [1.0, torch.nan], [1.0, torch.nan], [1.0, torch.nan]]); one = torch.ones(4).bool()
    >>> k = torch.tensor([[0, 1]] * 4); m = torch.ones(4, 2).bool(); zero = torch.zeros(4)
    >>> infopo(torch.zeros(4, 2), zero, g, k, zero.long(), one, m, 0).tolist()
    [[0.075, 0.0], [-0.025, 0.0], [-0.025, 0.0], [-0.025, 0.0]]
    """
    size = torch.stack([((turn == s) & mask).sum(1) for s in range(feedback_gain.shape[1])], 1)
    share = turns_to_tokens((feedback_gain / size).nan_to_num(0.0), turn)
    informed = mask & scored[:, None] & (turns_to_tokens(feedback_gain.isfinite().float(), turn) > 0)
    token_group = group[:, None].expand_as(informed)
    info = standardised(share.flatten(), token_group.flatten(), informed.flatten(), eps=eps).view_as(advantage)
    gate = torch.sigmoid(-group_std(reward, group, scored) / temperature)[:, None]
    factor = beta * torch.exp(torch.tensor(-decay * step, dtype=torch.float64))
    return advantage + (factor * gate * info).float()
