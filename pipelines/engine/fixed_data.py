"""The loop of a stage that trains on rows which do not change: an order of its rows, held-out measurements, a schedule.

What a step trains on is a pure function of seed and step, so that a restart needs no state of the data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.contract.sampling import Sampling
from pipelines.engine.layout import Layout, best_layouts, padded_layouts
from pipelines.engine.loop import Loop
from pipelines.engine.policy import Policy

HELDOUT = "loss/heldout"
"""The metric that `checkpoint_selection: best` compares."""


class Rows(Protocol):
    """Token ids of some items."""

    @property
    def tokens(self) -> Tensor:
        """int64 [B, T], padded on the right."""

    @property
    def mask(self) -> Tensor:
        """bool [B, T], the tokens to score; each row has one."""


R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, eq=False)
class Pass(Generic[R]):
    """Items that are computed together, forward and backward."""

    items: list[int]
    rows: R
    layouts: list[Layout]
    """Of the rows: one where processes share the work, since they must go forward and backward equally often."""


class FixedDataLoop(Loop):
    """One run of a stage with `FixedDataSettings`; arguments as in `Loop`."""

    measures = False
    """Whether there are held-out rows."""
    tokens_seen = 0
    last_heldout_loss = float("nan")

    def load(self) -> None:
        """Load or make the model, and its optimizer."""
        network = self.load_network()
        self.optimise(network, self.engine.policy(network, Sampling(), dtype=self.model_settings.dtype))

    def load_network(self) -> Any:
        """As in `Loop`; the rows fit into its context.

        Raises:
            DataError: they do not.
        """
        network = super().load_network()
        context = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        if context and self.settings.max_length > context:
            raise DataError(
                f"{self.section}.max_length",
                f"{self.settings.max_length} is more than the model's context of {context} tokens.",
            )
        return network

    def optimise(self, model: Any, policy: Policy, entry: Any = None) -> None:
        """Train the weights of a model; arguments as in `parallel.Weights`."""
        self.model, self.policy = model, policy
        self.weights = self.engine.weights(
            model, policy, self.world, entry, unread=self.unread, gradient_sync=self.settings.gradient_sync
        )
        self.optimizer = self.engine.optimizer(model, self.settings.optimizer)

    def layouts(self, rows: Rows) -> list[Layout]:
        """Layouts of all rows within the token budget; what rows share is computed once where it pays."""
        every, budget = torch.arange(len(rows.tokens)), self.settings.micro_batch_tokens
        return best_layouts(
            rows.tokens, rows.mask, every, budget, **self.policy.sharing(self.settings, self.world.size)
        )

    def passes(
        self, parts: Iterable[Sequence[int]], rows_of: Callable[[Sequence[int]], R]
    ) -> Iterator[tuple[Pass[R], bool]]:
        """This process's passes, as many as every other's, and of each whether it counts: False for a repeat.

        Args:
            parts: items by the pass that they go through; divided further until every process has a part and a part has one layout,
                where there are several processes.
            rows_of: the rows of some items.
        """
        divided = [list(part) for part in parts]
        while len(divided) < self.world.size and max(map(len, divided), default=0) > 1:
            largest = max(range(len(divided)), key=lambda number: len(divided[number]))
            divided[largest : largest + 1] = _halves(divided[largest])
        return self.world.share_evenly(self._passes(divided, rows_of))

    def _passes(self, parts: Iterable[list[int]], rows_of: Callable[[Sequence[int]], R]) -> Iterator[Pass[R]]:
        for part in parts:
            rows = rows_of(part)
            layouts = self.layouts(rows)
            if self.world.size == 1 or len(layouts) == 1:
                yield Pass(part, rows, layouts)
            elif len(part) > 1:
                yield from self._passes(_halves(part), rows_of)
            else:
                every = torch.arange(len(rows.tokens))
                yield Pass(part, rows, list(padded_layouts(rows.tokens, rows.mask, every, rows.tokens.numel())))

    def schedule(self, rows: int, per_step: int, updates: int = 1) -> None:
        """Set the number of steps, and with it the learning rate's schedule.

        Args:
            rows: of a pass over the data.
            per_step: rows of a step.
            updates: of the optimizer, in each step.
        """
        settings = self.settings
        self.total = settings.steps or max(1, int(rows * (settings.epochs or 1) / per_step))
        self.stepper = self.engine.stepper(
            self.optimizer, settings.optimizer, self.total * updates, settings.max_bad_steps
        )

    def measure(self) -> dict[str, float]:
        """Metrics of the held-out rows, `loss/heldout` among them."""
        raise NotImplementedError

    def score(self, step: int, metrics: dict[str, float]) -> float | None:
        """The held-out loss, where it is measured after this step."""
        if not self.measures or ((step + 1) % self.settings.evaluate_every and step + 1 < self.total):
            return None
        metrics |= self.measure()
        self.last_heldout_loss = metrics[HELDOUT]
        return -self.last_heldout_loss

    def note(self, metrics: dict[str, float]) -> str:
        """The loss."""
        return f"loss {metrics['loss/train']:.3f}"

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """Held-out loss of the weights that are handed on, and tokens."""
        return {"loss_heldout": self.last_heldout_loss, "tokens": float(self.tokens_seen)}

    def extra_state(self, step: int) -> dict[str, Any]:
        """What was read and measured so far."""
        return {"tokens": self.tokens_seen, "heldout": self.last_heldout_loss}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave."""
        self.tokens_seen, self.last_heldout_loss = state["tokens"], state["heldout"]

    def describe_best(self, state: dict[str, Any]) -> dict[str, Any]:
        """Its held-out loss."""
        return {"heldout": state["heldout"]}

    def selected(self, state: dict[str, Any]) -> None:
        """Its held-out loss is that of the weights."""
        self.last_heldout_loss = state["heldout"]


def _halves(items: list[int]) -> tuple[list[int], list[int]]:
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """The items of one pass over the data, in an order that depends on seed and epoch only."""
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


class Epochs:
    """Rows of a step, out of passes over the data that each have an order of their own.

    Args:
        rows_of: epoch → its rows, in order; a pure function.
        per_step: rows of a step.
    """

    def __init__(self, rows_of: Any, per_step: int) -> None:
        self.rows_of, self.per_step = rows_of, per_step
        self._kept: dict[int, list[Any]] = {}

    def step(self, number: int) -> list[Any]:
        """Rows of step `number`; a step at the end of a pass goes on with the next."""
        return self.take(number * self.per_step, self.per_step)

    def take(self, start: int, count: int) -> list[Any]:
        """`count` rows, from row `start` of all passes on."""
        return list(islice(self._from(start), count)) if count else []

    def _from(self, start: int) -> Iterator[Any]:
        epoch = 0
        while True:
            if epoch not in self._kept:
                self._kept = {k: v for k, v in self._kept.items() if k >= epoch - 1}
                self._kept[epoch] = self.rows_of(epoch)
            rows = self._kept[epoch]
            for place in range(start, len(rows)):
                yield rows[place]
            start, epoch = max(0, start - len(rows)), epoch + 1
