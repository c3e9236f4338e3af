"""A frozen language model's scores as rewards of each token.

Presets: lm_reward.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import REFERENCE, Passage, TokenStatistics
from pipelines.rlvr.common.scored_rows import scored_rows


def _values(logits: Tensor, ids: Tensor, embeddings: Tensor) -> Tensor:
    """q of the token, and the largest q of the vocabulary: logits less their mean, [M, 2]."""
    centred = logits - logits.mean(-1, keepdim=True)
    return torch.stack([centred.gather(-1, ids[:, None])[:, 0], centred.amax(-1)], 1)


VALUES = TokenStatistics(2, _values)


@method(
    paper="2210.08708",
    title="Teacher Forcing Recovers Reward Functions for Text Generation",
    checked="paper (formulas; its code was not read; the maximum option)",
    makes=("process_reward",),
    provenance=("model",),
)
class lm_reward(Provider):
    """r_t = q_t(y_t) - max_a q_{t+1}(a), with q the logits of a model trained by teacher forcing, less their mean over the vocabulary.

    A model trained on good text holds a value function: its logits. Where every token is the model's first choice the rewards of a row
    telescope to q of its first token. Nothing follows the row's last token: the maximum there is 0. Between two turns the
    next token of the policy's own counts. The model is the starting policy, or another of the same vocabulary: a stage of the recipe, or a
    model by its path (with a slash).
    """

    model_paths: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, *, model: Annotated[str, Field(min_length=1, max_length=4096)] = REFERENCE) -> None:
        self.model = model
        self.reads_network = model == REFERENCE

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer, and load the model.

        Raises:
            RecipeError: the model's tokenizer is another than the policy's.
        """
        self.scorer = context.scorer
        if self.model != REFERENCE:
            own, other = (self.scorer.tokenizer(name).get_vocab() for name in (REFERENCE, self.model))
            if own != other:
                raise RecipeError(
                    "rlvr.providers",
                    f"lm_reward scores the policy's tokens, and {self.model} has another vocabulary ({len(other)} entries, {len(own)})",
                    "Choose a model of the same family.",
                )
        self.scorer.load(self.model)

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`process_reward` [B, T]."""
        rows = scored_rows(tokens, columns)
        passages = [Passage(row.tokens[: row.first], row.tokens[row.first :]) for row in rows]
        rewards = torch.zeros(tokens.shape)
        for row, values in zip(rows, self.scorer.statistics(passages, VALUES, model=self.model), strict=True):
            places = columns["mask"][row.index].nonzero().squeeze(1)
            chosen, best = values[places - row.first].unbind(1)
            rewards[row.index, places] = (chosen - torch.nn.functional.pad(best[1:], (0, 1))).nan_to_num(0.0)
        columns["process_reward"] = rewards
