"""The loop of a stage that trains on rows which do not change: an order of its rows, held-out measurements, a schedule.

What a step trains on is a pure function of seed and step, so that a restart needs no state of the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pipelines.base.errors import DataError
from pipelines.contract.sampling import Sampling
from pipelines.engine import optimizer, parallel
from pipelines.engine.loop import Loop
from pipelines.engine.policy import Policy

HELDOUT = "loss/heldout"
"""The metric that `checkpoint_selection: best` compares."""


class FixedDataLoop(Loop):
    """One run of a stage with `FixedDataSettings`; arguments as in `Loop`."""

    measures = False
    """Whether there are held-out rows."""
    tokens_seen = 0
    last_heldout_loss = float("nan")

    def load(self) -> None:
        """Load or make the model, and its optimizer."""
        self.optimise(network := self.load_network(), Policy(network, Sampling(), dtype=self.model_settings.dtype))

    def load_network(self) -> Any:
        """As in `Loop`; the rows fit into its context.

        Raises:
            DataError: they do not.
        """
        network = super().load_network()
        context = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        if context and self.settings.max_length > context:
            raise DataError(
                f"{self.section}.max_length: {self.settings.max_length} is more than the model's context of {context} tokens."
            )
        return network

    def optimise(self, model: Any, policy: Policy) -> None:
        """Train the weights of a model.

        Args:
            policy: what its forward passes go through.
        """
        self.model, self.policy = model, policy
        self.weights = parallel.Weights(model, policy, self.world)
        self.optimizer = optimizer.make(model, self.settings.optimizer)

    def schedule(self, rows: int, per_step: int, updates: int = 1) -> None:
        """Set the number of steps, and with it the learning rate's schedule.

        Args:
            rows: of a pass over the data.
            per_step: rows of a step.
            updates: of the optimizer, in each step.
        """
        settings = self.settings
        self.total = settings.steps or max(1, int(rows * (settings.epochs or 1) / per_step))
        self.stepper = optimizer.Stepper(
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
