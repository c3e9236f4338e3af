"""The policy of a remote engine: log-probabilities come from the server, and their derivatives go back to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine.layout import Layout
from pipelines.engine.policy import Entropy, Policy, Where
from pipelines.engine.tinker.session import Row, Session

GIVES = "a remote engine gives log-probabilities of tokens, and no hidden states, logits or entropies"


class RemotePolicy(Policy):
    """Log-probabilities of a model whose weights are on a server. Where a loss is taken backwards, its derivatives are sent.

    The server gives no entropies. In their place stands the negative log-probability of the token, without gradient: of a token that
    the policy has drawn, its expectation is the entropy.

    Args:
        model: the network without values, for its configuration.
        session: with the server.
        reference: where the weights are that the run started from; None for the base model.
        sampling: must not change the model's own distribution.
    """

    def __init__(self, model: Any, session: Session, reference: str | None, sampling: Sampling) -> None:
        super().__init__(model, sampling)
        self.session, self.start = session, reference
        self.takes_masks = self.takes_prefixes = False  # rows are sent one by one
        self._refers = False
        self._anchor = torch.zeros((), requires_grad=True)

    def sharing(self, settings: Any, ranks: int = 1) -> dict[str, Any]:
        """Nothing is shared: the server lays rows out."""
        return {"allow_trees": False, "allow_prefixes": False}

    @property
    def keeps_reference(self) -> bool:
        """True: the server has the weights that the run started from."""
        return True

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """A context in which the policy is the one it started from."""
        self._refers = True
        try:
            yield
        finally:
            self._refers = False

    def score(
        self, layout: Layout, chosen: Tensor, *, entropy: Entropy = "no", named: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `Policy.score`.

        Raises:
            ModelError: tokens are `named`, or the sampling is not the model's own distribution.
        """
        if named is not None or self.top_p_mass is not None or entropy in ("gradient", "collision"):
            raise ModelError("engine", GIVES, "Leave `engine` out, or choose other methods.")
        if not self.sampling.unchanged:
            raise ModelError(
                "engine", "the server scores at temperature 1 over all tokens", "Leave the fields of `sampling` out."
            )
        rows, order = rows_of(layout, chosen.cpu())
        if self._refers:
            scored = torch.tensor(_in_order(self.session.reference_log_probs(rows, self.start)))
        elif torch.is_grad_enabled():
            scored = _Score.apply(self._anchor, self.session, rows)  # type: ignore[no-untyped-call]
        else:
            scored = torch.tensor(_in_order(self.session.log_probs(rows)))
        log_probs = torch.empty(len(chosen)).index_copy(0, order, scored)
        return log_probs, None if entropy == "no" else -log_probs.detach()

    def hidden(self, layout: Layout, where: Where) -> Tensor:
        """Refused.

        Raises:
            ModelError: always.
        """
        raise ModelError("engine", GIVES, "Leave `engine` out, or choose other methods.")

    def of_logits(self, layout: Layout, chosen: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Refused.

        Raises:
            ModelError: always.
        """
        raise ModelError("engine", GIVES, "Leave `engine` out, or choose other methods.")


class _Score(torch.autograd.Function):
    """Log-probabilities float32 [M], in the order of rows and places; backwards, the server adds their gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, session: Session, rows: list[Row]) -> Tensor:
        ctx.session, ctx.rows = session, rows
        ctx.log_probs = session.log_probs(rows)
        return torch.tensor(_in_order(ctx.log_probs))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if not bool(torch.isfinite(gradient).all()):
            raise ModelError("engine", "the loss has a derivative that is not finite", "Look at the step's rewards.")
        parts = gradient.split([len(row.places) for row in ctx.rows])
        kept = [number for number, part in enumerate(parts) if bool(part.any())]
        if kept:
            ctx.session.add_gradient(
                [ctx.rows[number] for number in kept],
                [parts[number].tolist() for number in kept],
                [ctx.log_probs[number] for number in kept],
            )
        return torch.zeros(()), None, None


def rows_of(layout: Layout, chosen: Tensor) -> tuple[list[Row], Tensor]:
    """A layout of padded rows as the server takes them, and where their scored tokens stand among the layout's, int64 [M].

    Args:
        layout: one row of the step in each of its rows, without a mask of its own.
        chosen: int64 [M], the scored tokens.
    """
    assert layout.attention is None and layout.prefix is None, "a remote policy shares nothing"
    width = layout.ids.shape[1]
    order = layout.source.argsort()
    rows: list[Row] = []
    place = layout.source[order]
    for number in (place // width).unique().tolist():
        of_row = (place // width == number).nonzero().squeeze(1)
        places = (place[of_row] % width).tolist()
        tokens = layout.ids[number, : places[-1] + 1].tolist()
        targets = [*tokens[1:], int(chosen[order[of_row[-1]]])]
        rows.append(Row(tokens, targets, places))
    return rows, order


def _in_order(values: list[list[float]]) -> list[float]:
    return [value for each in values for value in each]
