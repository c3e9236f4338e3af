"""How likely a reference finds completions that another model drew: their log-ratio, whose mean is a KL."""

from __future__ import annotations

import torch

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.layout import best_layouts
from pipelines.engine.policy import frozen_policy, hidden_states


class Reference:
    """A model that completions are compared with, under the sampler's own temperature.

    Args:
        path: folder or hub name.
        budget: tokens of a pass.
    """

    def __init__(self, path: str, model: Model, sampling: Sampling, *, budget: int) -> None:
        self.policy, self.dtype, self.budget = frozen_policy(path, model, sampling), model.dtype, budget

    @torch.no_grad()
    def log_probs(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Log-probability in nats of each whole completion given its prompt."""
        rows = [torch.tensor([*prompt, *text]) for prompt, text in zip(prompts, completions, strict=True)]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        position = torch.arange(tokens.shape[1])
        starts, ends = (torch.tensor(list(map(len, lists)))[:, None] for lists in (prompts, rows))
        mask = (position >= starts) & (position < ends)
        totals = torch.zeros(len(rows), dtype=torch.float64)
        policy = self.policy
        layouts = best_layouts(
            tokens, mask, torch.arange(len(rows)), self.budget,
            allow_trees=policy.takes_masks, allow_prefixes=policy.takes_prefixes,
        )  # fmt: skip
        for layout in layouts:
            with models.autocast(self.dtype, policy.device):
                hidden = hidden_states(policy.decoder, layout, policy.device, policy.mask_form)
            logp, _ = policy.score_hidden(hidden, tokens.flatten()[layout.target])
            totals.index_add_(0, layout.target // tokens.shape[1], logp.double().cpu())
        return [float(value) for value in totals]
