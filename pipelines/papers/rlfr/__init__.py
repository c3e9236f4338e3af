"""RLFR: Extending Reinforcement Learning for LLMs with Flow Environment.

arXiv 2510.10201. Presets: rlfr. Parts: flow_field (providers), rlfr (shaping), group_norm (advantage).

How far each token's hidden states are from where a flow that learned from good answers would take them.

Tokens whose hidden states stray from a flow of good answers are charged for it.

The outcome against its group, and what is still paid or charged at tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.data import chat, control
from pipelines.engine import distribution
from pipelines.papers.rlfr.flow import VelocityField, deviation
from pipelines.rlvr.common.scored_rows import read_at
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.pack import padded

COLUMNS = {
    "velocity_deviation": Column(
        "B T",
        "float32",
        Phase.ADVANTAGE,
        "a flow over hidden states",
        "How far the token's hidden states are from where the flow would take them.",
        part=True,
        hint="Train a flow: providers: [flow_field].",
        span=(0.5, 4.0),
    ),
}

NOISE, OFFLINE = 8, 9
"""RNG stream ids of the noise that states are mixed with, and of what is learned before the first step."""


@method(
    paper="2510.10201",
    title="RLFR: Extending Reinforcement Learning for LLMs with Flow Environment (the flow)",
    checked="official code (read; it conditions on the token before both offline and in RL, the code's offline part on the token after)",
    makes=("velocity_deviation",),
)
class flow_field(Provider):
    """For each trained token, with h its hidden state after a block of the policy, c that of the token before it and e noise:

        x = t h + (1 - t) e,    velocity_deviation = t / (1 - t) mean over depths |v(x, t, c, depth) - (h - e)|^2 / width

    The field v is a small network. It learns before the first step from the records' solutions (`offline_steps` of `offline_rows` records,
    t logit-normal; records without a solution are left out, and where no record has one there is nothing to learn from), then from the
    answers of each step that the verifier calls correct, at `time`. The policy gets no gradient from it. The noise of a step's rows is the
    same whenever the step is repeated.

    Args:
        depths: blocks of the policy whose output is read, as shares of their number.
    """

    reads_network = True

    def __init__(
        self,
        *,
        depths: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=32)] | None = None,
        blocks: Annotated[int, Field(ge=1, le=100)] = 6,
        time: Annotated[float, Field(gt=0, lt=1)] = 0.8,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-4,
        offline_steps: Annotated[int, Field(ge=0)] = 100,
        offline_rows: Annotated[int, Field(ge=1)] = 16,
    ) -> None:
        self.depths, self.blocks, self.time, self.learning_rate = (
            depths or [0.25, 0.5, 0.75],
            blocks,
            time,
            learning_rate,
        )
        self.offline_steps, self.offline_rows = offline_steps, offline_rows

    def setup(self, context: ProviderContext) -> None:
        """Make the field."""
        self.policy, self.passes, self.seed = context.policy, context.passes, context.seed
        self.tokenizer = context.scorer.tokenizer()
        self.solved = [problem for problem in context.problems.values() if problem.info.get("solution")]
        count = len(self.policy.layers)
        self.layers = tuple(min(round(depth * count), count - 1) for depth in self.depths)
        device = self.policy.device
        self.shares = torch.tensor([layer / count for layer in self.layers], device=device)
        torch.manual_seed(context.seed)
        self.field = VelocityField(self.policy.head.in_features, self.blocks).to(device)
        self.optimizer = torch.optim.AdamW(self.field.parameters(), lr=self.learning_rate, weight_decay=0.0)
        self.taught = False

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`velocity_deviation` [B, T]."""
        if not self.taught:
            self._learn_offline()
            self.taught = True
        filled = torch.zeros(tokens.numel())
        for position, states, before in self._states(tokens, columns["mask"]):
            with torch.no_grad():
                time = torch.full((len(position),), self.time, device=states.device)
                noise = self._noise(position, tokens.shape[1], states, int(columns["step"]))
                error = deviation(self.field, states, before, noise, time, self.shares)
            filled[position] = (self.time / (1 - self.time) * error.mean(1)).cpu()
        columns["velocity_deviation"] = filled.view(tokens.shape)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Learn from the correct rows, each as much as another."""
        mask = columns["mask"] & (columns["correct"] > 0)[:, None]
        if not mask.any():
            return {}
        weight = (mask / mask.sum(1, keepdim=True).clamp(min=1) / mask.any(1).sum()).flatten()
        total = 0.0
        for position, states, before in self._states(tokens, mask):
            time = torch.full((len(position),), self.time, device=states.device)
            noise = self._noise(position, tokens.shape[1], states, int(columns["step"]), "update")
            error = deviation(self.field, states, before, noise, time, self.shares).mean(1)
            loss = (error * weight[position].to(error.device)).sum()
            loss.backward()
            total += float(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"flow/loss": total}

    def _learn_offline(self) -> None:
        """Steps on random records' solutions, after their prompts."""
        if not self.solved:
            return
        end = int(self.tokenizer.eos_token_id)
        for step in range(self.offline_steps):
            draw = distribution.generator(torch.device("cpu"), self.seed, OFFLINE, step)
            picked = [
                self.solved[i] for i in torch.randperm(len(self.solved), generator=draw)[: self.offline_rows].tolist()
            ]
            prompts = chat.render_prompts(self.tokenizer, [p.prompt for p in picked], [p.tools for p in picked])
            texts = [control.encode_text(self.tokenizer, str(p.info["solution"])) for p in picked]
            rows = [[*prompt, *text, end] for prompt, text in zip(prompts, texts, strict=True)]
            tokens = padded(rows, max(map(len, rows)), 0, torch.int64)
            position = torch.arange(tokens.shape[1])
            first, last = (torch.tensor([len(row) for row in each])[:, None] for each in (prompts, rows))
            mask = (position >= first) & (position < last)
            for positions, states, before in self._states(tokens, mask):
                time = torch.randn(len(positions), generator=draw).sigmoid().to(states.device)
                noise = torch.randn(states.shape, generator=draw).to(states.device)
                error = deviation(self.field, states, before, noise, time, self.shares)
                (error.mean(1).sum() / mask.sum()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _states(self, tokens: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each pass over the rows: int64 [N] flat places of its tokens in the mask, and the hidden states [N, D, width] at them and
        at the tokens before them.
        """
        width = tokens.shape[1]
        needed = mask | torch.nn.functional.pad(mask[:, 1:], (0, 1))
        ids, positions = read_at(tokens, needed)
        for layout in self.passes.layouts(ids, positions, positions.any(1).nonzero().squeeze(1)):
            states = self.policy.hidden(layout, self.layers)
            own = layout.target // (width + 1) * width + layout.target % (width + 1) - 1
            index = torch.full((tokens.numel(),), -1)
            index[own] = torch.arange(len(own))
            position = own[mask.flatten()[own]]
            yield position, states[index[position]], states[index[position - 1]]

    def _noise(self, place: Tensor, width: int, states: Tensor, *stream: int | str) -> Tensor:
        """Noise of the states' shape that depends on the row and the token alone."""
        noise = torch.empty(states.shape)
        for row in (place // width).unique().tolist():
            draw = distribution.generator(torch.device("cpu"), self.seed, *stream, NOISE, row)
            drawn = torch.randn(width, *states.shape[1:], generator=draw)
            own = place // width == row
            noise[own] = drawn[place[own] % width]
        return noise.to(states.device)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, and whether the offline part is done."""
        return {"field": self.field.state_dict(), "optimizer": self.optimizer.state_dict(), "taught": self.taught}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.field.load_state_dict(state["field"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.taught = state["taught"]


@method(
    paper="2510.10201",
    title="RLFR: Extending Reinforcement Learning for LLMs with Flow Environment (the flow reward)",
    checked="official code (read)",
    couples="row",
    makes=("token_reward",),
    provenance=("demonstrations", "policy"),
)
def rlfr(
    velocity_deviation: PerToken,
    mask: PerToken,
    *,
    weight: Annotated[float, Field(ge=0, le=1000)] = 0.01,
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.6,
    most: Annotated[int, Field(ge=1)] | None = 15,
) -> PerToken:
    """-weight s on the tokens that deviate most, with s the deviation from 0 (the row's smallest) to 1 (its largest):

        s_t = (d_t - min d) / (max d - min d), 0 where s_t <= threshold, and but for the row's `most` largest

    A row whose tokens all deviate equally is not penalised. (The released code takes the padding's 0 as the smallest of shorter rows and
    works around it with the second smallest; here padding is ignored.) Needs an advantage that reads rewards of tokens.

    >>> import torch
    >>> d = torch.tensor([[0.6, 1.8, 0.733333, 3.066667, 1.2]])
    >>> rlfr(d, d > 0).tolist(), rlfr(d, d > 0, threshold=0.0, most=2, weight=1.0).tolist()
    ([[0.0, 0.0, 0.0, -0.01, 0.0]], [[0.0, -0.486486, 0.0, -1.0, 0.0]])
    """
    values = velocity_deviation.double()
    low = values.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    high = values.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
    spread = high - low
    share = torch.where(mask & (spread > 0), (values - low) / spread, 0.0)
    share = torch.where(share > threshold, share, 0.0)
    if most is not None and most < share.shape[1]:
        kept = torch.zeros_like(mask).scatter(1, share.topk(most, 1).indices, True)
        share = share * kept
    return (-weight * share).float()


@method(
    paper="2510.10201",
    title="RLFR: Extending Reinforcement Learning for LLMs with Flow Environment (OpenRLHF's group_norm with rewards of tokens)",
    checked="official code (read)",
    couples="group",
    reduces_to="without rewards or penalties of tokens it is grpo",
)
def group_norm(
    reward: PerRow,
    token_penalty: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    scale: Literal["std", "none"] = "std",
    eps: Annotated[float, Field(gt=0)] = 1e-9,
) -> PerToken:
    """A_t = (R - mean R) / (std R + eps) + sum_{s >= t} (what token s is paid - what it is charged).

    R is the row's reward without what its tokens are paid and charged: those are on the scale of the settings that pay them, and reach the
    tokens before them, whatever the group. Mean and deviation (ddof 1) are the group's; a row alone has 0 for its outcome.

    >>> import torch
    >>> paid = torch.tensor([[0.0, -0.01, 0.0], [0.0, 0.0, 0.0]]); R = torch.tensor([1.0, 0.0]) + paid.sum(1)
    >>> A = group_norm(R, -paid, torch.zeros(2).long(), torch.ones(2).bool(), torch.ones(2, 3).bool(), scale="none")
    >>> A.tolist()
    [[0.49, 0.49, 0.5], [-0.5, -0.5, -0.5]]
    """
    trained = mask & scored[:, None]
    charged = token_penalty.double() * trained
    outcome = standardised(reward.double() + charged.sum(1), group, scored, scale=scale == "std", eps=eps)
    return ((outcome[:, None] - charged.flip(1).cumsum(1).flip(1)) * trained).float()
