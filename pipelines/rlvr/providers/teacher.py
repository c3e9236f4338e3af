"""Another model that says how likely it finds the policy's own tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.engine import models
from pipelines.engine.policy import frozen_policy
from pipelines.recipe.model_path import is_stage_name


@method(
    paper="2306.13649",
    title="On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (GKD)",
    checked="closed form",
    makes=("logp_teacher",),
)
class teacher(Provider):
    """Log-probabilities under a frozen teacher, of the same vocabulary, at the policy's temperature and truncation.

    `path` is a stage of the recipe that makes a model, or a model by its path (with a slash); `revision` is that of a hub name.
    """

    model_paths: ClassVar[tuple[str, ...]] = ("path",)
    reads_all_rows: ClassVar[bool] = False

    def __init__(self, *, path: str, revision: str | None = None) -> None:
        if revision is not None and is_stage_name(path):
            raise RecipeError(
                "rlvr.providers",
                f"the teacher's revision is that of a hub name, and {path} is a stage",
                "Leave it out.",
            )
        self.path, self.revision = path, revision

    def setup(self, context: ProviderContext) -> None:
        """Load the teacher.

        Raises:
            RecipeError: its tokenizer is another than the policy's.
        """
        about: dict[str, Any] = {
            "path": self.path,
            "revision": self.revision,
            "fresh": None,
            "allow_missing": [],
            "allow_unexpected": [],
        }
        settings = context.model.model_copy(update=about)
        own = models.load_tokenizer(context.start, context.model).get_vocab()
        other = models.load_tokenizer(self.path, settings).get_vocab()
        if own != other:
            raise RecipeError(
                "rlvr.providers",
                f"the teacher {self.path} has another vocabulary than the policy ({len(other)} entries, {len(own)}); per-token "
                "distillation needs the same one",
                "Choose a teacher of the same family.",
            )
        self.policy = frozen_policy(self.path, settings, context.rlvr.sampling)
        self.passes = context.passes

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_teacher` [B, T]."""
        columns["logp_teacher"] = self.passes.per_token(
            lambda layout, ids: self.policy.score(layout, ids)[0], tokens, columns["mask"]
        )
