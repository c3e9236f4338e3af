"""What learning a reward model from pairs and from labelled steps have in common: network, order of the data, the card's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pipelines.base.errors import DataError
from pipelines.base.files import REPORT, write_atomic
from pipelines.engine import models, reward_model
from pipelines.engine.fixed_data import Epochs, FixedDataLoop, epoch_order
from pipelines.engine.reward_network import RewardNetwork
from pipelines.reward_model import card
from pipelines.reward_model.kind import bound_loss
from pipelines.reward_model.pack import Example
from pipelines.reward_model.settings import RewardModel

CARD, ABOUT = "card.md", "reward_model.json"
HELDOUT_EXAMPLES = 2048
"""Held-out pairs, or answers with labelled steps, scored per measurement, at most."""

E = TypeVar("E", bound=Example)


class RewardTrainer(FixedDataLoop):
    """One run; arguments as in `Loop`."""

    section = "reward_model"
    settings: RewardModel

    def prepare(self, data: Path) -> None:
        """Bind the loss, and read the examples."""
        self.loss = bound_loss(self.settings)
        self.system = models.system_prompt_of(self.origin) if self.origin is not None else None
        self.final: dict[str, float] = {}
        """The card's metrics, of the weights that are handed on."""
        self.read(data)

    def read(self, data: Path) -> None:
        """Read the examples, make the network and plan the steps."""
        raise NotImplementedError

    def load_heads(self, heads: int, *, text: bool, users: tuple[int, int] | None = None) -> None:
        """The starting model with its heads, and the optimizer; arguments as in `RewardNetwork`."""
        causal = self.load_network().train(self.settings.gradient_checkpointing)
        model = RewardNetwork(causal, heads, seed=self.seed, text=text, dtype=self.model_settings.dtype, users=users)
        self.optimise(model, model.policy, entry=model)

    def plan_steps(self, count: int) -> None:
        """Passes over `count` examples, each in an order of its own, and the number of steps that they make."""
        self.epochs = Epochs(partial(epoch_order, count, self.seed), self.settings.pairs_per_step)
        self.schedule(count, self.settings.pairs_per_step)

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
                "reward_model.max_length", f"all {len(examples)} {named} of {split} are longer than {limit} tokens."
            )
        return kept

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """The card's metrics too."""
        return super().summary(metrics) | self.final

    def extra_state(self, step: int) -> dict[str, Any]:
        """What the loss remembers too."""
        return super().extra_state(step) | {"loss": self.loss.fn.state_dict()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave."""
        super().load_extra_state(state)
        self.loss.fn.load_state_dict(state["loss"])

    def about(self) -> dict[str, Any]:
        """The loss, and a system prompt that the model was trained with, too."""
        return super().about() | {"loss": self.loss.name} | ({"system_prompt": self.system} if self.system else {})

    def write_model(
        self, network: RewardNetwork, about: dict[str, Any], *, only_first: bool = False, **options: Any
    ) -> None:
        """The checkpoint, and its adapters by themselves where there are any; arguments as in `engine.reward_model.save`."""
        lora = self.settings.lora is not None
        if lora:
            self.save_adapter(network.model, reward_model.plain_head(network, only_first))
        folder = self.out / "model"
        reward_model.save(network, self.tokenizer, folder, about, lora=lora, only_first=only_first, **options)

    def write_card(self, counts: dict[str, Any], named: str) -> None:
        """`card.md` and `reward_model.json` of the report: what was learned from, and the metrics of the held-out examples."""
        described = {"loss": self.loss.name, "heads": self.model.heads.out_features, **counts, "steps": self.total}
        write_atomic(self.out / REPORT / CARD, card.text(self.loss.name, described, self.final, named))
        write_atomic(
            self.out / REPORT / ABOUT, json.dumps({**described, "heldout": self.final}, indent=1, sort_keys=True)
        )
