"""A function of the user's that says what a state is worth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipelines.base.user_functions import load_function
from pipelines.contract.provider import ProviderContext
from pipelines.data.control import decode_text
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.rlvr import scoring
from pipelines.rlvr.common.scored_rows import scored_rows

FIELD = "rlvr.providers.heuristic"


class Heuristic:
    """Values of states by a function (`FILE.py:NAME` or `package.module:NAME`) with a reward function's signature.

    Its `completions` are what follows the prompt so far, an environment's answers among it.

    Raises:
        RecipeError: it cannot be imported.
    """

    def __init__(self, path: str) -> None:
        self.path, self.function = path, load_function(path, FIELD)

    def setup(self, context: ProviderContext) -> None:
        """Keep what decodes and knows the problems."""
        self.scorer, self.problems, self.timeout_s = context.scorer, context.problems, context.rlvr.reward_timeout_s

    def values(self, tokens: Tensor, columns: dict[str, Any], asked: Tensor) -> Tensor:
        """The value in front of each asked token, float32 [B, T]; NaN elsewhere, and where the function gives None.

        Args:
            tokens: int64 [B, T].
            columns: as `scored_rows` reads them.
            asked: bool [B, T].

        Raises:
            RecipeError: the function raises, hangs, or returns something else than a number or None for each state.
        """
        tokenizer = self.scorer.tokenizer()
        values = torch.full(tokens.shape, torch.nan)
        for row in scored_rows(tokens, columns):
            problem = self.problems[row.problem]
            places = asked[row.index].nonzero().squeeze(1).tolist()
            states = []
            for place in places:
                ids = row.tokens[:place]
                states.append(
                    Trajectory(
                        uid=problem.uid, group=0, tokens=ids, logp_old=[0.0] * place, max_tokens=place, stop=Stop.WINDOW, version=0,
                        role=[int(Role.PROMPT)] * row.first + [int(Role.POLICY)] * (place - row.first),
                        text=decode_text(tokenizer, ids[row.first :]),
                    )
                )  # fmt: skip
            returned = scoring.hidden_values(
                self.path, self.function, states, {problem.uid: problem}, self.timeout_s, field=FIELD
            )
            known = [torch.nan if value is None else value for value in returned]
            values[row.index, places] = torch.tensor(known, dtype=torch.float32)
        return values
