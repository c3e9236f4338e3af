"""What learning a reward model from pairs and from labelled steps have in common: network, order of the data, the card's files."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipelines.base.errors import DataError
from pipelines.base.files import REPORT, write_atomic
from pipelines.contract.model_settings import Model
from pipelines.data import dataset
from pipelines.engine import models, optimizer, reward_model
from pipelines.engine.loop import Epochs, Loop
from pipelines.engine.policy import without_dropout
from pipelines.reward_model import card
from pipelines.reward_model.kind import bound_loss
from pipelines.reward_model.pack import Example
from pipelines.reward_model.settings import RewardModel
from pipelines.stage.report import Report

CARD, ABOUT = "card.md", "reward_model.json"
HELDOUT_EXAMPLES = 2048
"""Held-out pairs, or answers with labelled steps, scored per measurement, at most."""

E = TypeVar("E", bound=Example)


class RewardTrainer(Loop):
    """One run; arguments as in `Loop`."""

    def __init__(
        self,
        settings: RewardModel,
        model: Model,
        *,
        data: Path,
        out: Path,
        work: Path,
        report: Report,
        seed: int,
        start: str | None = None,
    ) -> None:
        super().__init__(
            "reward_model", settings, model, data=data, out=out, work=work, report=report, seed=seed, start=start
        )
        self.section_settings = settings
        self.loss = bound_loss(settings)
        models.check_template(dataset.about(data).get("template"), self.tokenizer, "reward_model")
        self.system = models.system_prompt_of(self.origin) if self.origin is not None else None
        self.final: dict[str, float] = {}
        """The card's metrics, of the weights that are handed on."""
        self.prepare(data)

    def prepare(self, data: Path) -> None:
        """Read the examples, make the network and plan the steps: the end of the constructor."""
        raise NotImplementedError

    def load_network(self, heads: int, *, text: bool, users: tuple[int, int] | None = None) -> None:
        """The starting model with its heads, and the optimizer; arguments as in `RewardNetwork`."""
        settings = self.section_settings
        causal = self._model()
        without_dropout(causal)
        self.device = models.device()
        causal.to(self.device)
        causal.train(settings.gradient_checkpointing)
        self.model = reward_model.RewardNetwork(
            causal, heads, seed=self.seed, text=text, dtype=self.settings.dtype, users=users
        )
        self.policy = self.model.policy
        self.optimizer = optimizer.make(self.model, settings.optimizer)

    def plan_steps(self, count: int) -> None:
        """Passes over `count` examples, each in an order of its own, and the number of steps that they make."""
        settings = self.section_settings

        def order(epoch: int) -> list[int]:
            places = list(range(count))
            random.Random(f"{self.seed} {epoch}").shuffle(places)
            return places

        self.epochs = Epochs(order, settings.pairs_per_step)
        per_epoch = count / settings.pairs_per_step
        self.schedule(settings.steps or max(1, int(per_epoch * (settings.epochs or 1))))

    def fitting(self, examples: Sequence[E], limit: int, named: str, split: str) -> list[E]:
        """Those with conversations of at most `limit` tokens; how many are dropped is an event.

        Raises:
            DataError: none is left.
        """
        kept = [example for example in examples if example.longest <= limit]
        if len(kept) < len(examples):
            dropped = {named: len(examples) - len(kept)}
            self.report.event(f"dropped {named} longer than reward_model.max_length", split=split, **dropped)
        if not kept:
            raise DataError(
                f"reward_model.max_length: all {len(examples)} {named} of {split} are longer than {limit} tokens."
            )
        return kept

    def summary(self) -> dict[str, float]:
        """The card's metrics."""
        return self.final

    def write_card(self, counts: dict[str, Any], named: str) -> None:
        """`card.md` and `reward_model.json` of the report: what was learned from, and the metrics of the held-out examples."""
        described = {"loss": self.loss.name, "heads": self.model.heads.out_features, **counts, "steps": self.total}
        write_atomic(self.out / REPORT / CARD, card.text(self.loss.name, described, self.final, named))
        write_atomic(
            self.out / REPORT / ABOUT, json.dumps({**described, "heldout": self.final}, indent=1, sort_keys=True)
        )
