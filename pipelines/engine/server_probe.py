"""Whether a server holds the weights that were pushed: log-probabilities of fixed sequences, the server's and the trainer's.

A server that answers 200 to a reload may have replaced nothing, or a part only; rollouts of such a mixture are of no policy at
all. Let d be the mean of |server - trainer| over the sequences' tokens, and m the mean change of the trainer's own values since
the first push. With the right weights d is rounding, the same at every push. With old weights d is m; with a part of them old,
a share of it. So it is a fault when d is beyond all rounding, when d is several times what it was at the first push and more
than a twentieth of m, or when the server's answers did not change at all though the trainer's did.

How much rounding there is depends on the model: random tokens of SmolLM2-135M are off by 0.06 nats in the trainer's own
bfloat16, and by 0.11 in a server whose norms and residuals are rounded too. So `rounding_of` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import StaleWeights
from pipelines.base.project import page
from pipelines.data.marks import FIRST_ID
from pipelines.engine.models import autocast

SEQUENCES = 4
LENGTH = 32
"""Tokens of a sequence, at most."""
SEED = 20_011
BOUNDS = {"float32": 1e-3, "bfloat16": 0.07, "float16": 0.02}
"""Most d of a healthy server, nats, by the coarser of the two dtypes; of a model that amplifies rounding, `AMPLIFIED` times its own."""
AMPLIFIED = 3.0
"""Most d in bfloat16, in units of `rounding_of`."""
FLOORS = {"float32": 2e-6, "bfloat16": 2e-3, "float16": 5e-4}
"""d of the first push counts as at least this, nats."""
GROWTH = 4.0
"""d against the first push's; more is growth."""
SHARE = 0.05
"""Of m, which d must exceed to be a fault by growth."""
FROZEN = {"float32": 1, "bfloat16": 3, "float16": 3}
"""Pushes in a row without any change of the answers; coarse weights may swallow a small update."""


def sequences(vocabulary: int, context: int) -> list[list[int]]:
    """The fixed token ids that are asked about."""
    generator = torch.Generator().manual_seed(SEED)
    length = max(2, min(LENGTH, context - 1))
    return torch.randint(vocabulary, (SEQUENCES, length), generator=generator).tolist()


def trainer_logps(model: Any, tokens: list[list[int]], dtype: str) -> Tensor:
    """The trainer's log-probability of each token but the first and places of images at temperature 1, float32 [N], nats."""
    device = next(model.parameters()).device
    ids = torch.tensor(tokens, device=device)
    was_training = model.training
    model.eval()
    stored = dict(model.named_parameters())
    weights = stored if dtype != "float32" else {name: weight.float() for name, weight in stored.items()}
    named: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if bool((ids >= FIRST_ID).any()):  # families that see otherwise look for their own tokens of images
        named["position_ids"] = torch.arange(ids.shape[1], device=device).expand(ids.shape)
    with torch.no_grad(), autocast(dtype, device):
        logits = torch.func.functional_call(model, weights, kwargs=named).logits
    model.train(was_training)
    return chosen_logps(logits, ids)


def chosen_logps(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of each token but the first and places of images at temperature 1, float32 [N], nats.

    Args:
        logits: [rows, tokens, vocabulary].
        ids: int64 [rows, tokens].
    """
    chosen = ids[:, 1:, None]
    logp = logits[:, :-1].float().log_softmax(-1).gather(2, chosen.masked_fill(chosen >= FIRST_ID, 0))
    return logp[chosen < FIRST_ID].cpu()


def rounding_of(logps: Callable[[list[list[int]], str], Tensor], tokens: list[list[int]]) -> float:
    """Mean |bfloat16 - float32| of the trainer's own values, nats.

    Args:
        logps: (tokens, dtype) → `trainer_logps` of the model.
    """
    return float((logps(tokens, "bfloat16") - logps(tokens, "float32")).abs().mean())


class Probe:
    """What one server answered, push by push.

    Args:
        name: the server, for messages.
        dtype: the coarser of trainer's and server's, a key of `BOUNDS`.
        rounding: of the model in this dtype (`rounding_of`), nats; 0 where it was not measured.
    """

    def __init__(self, name: str, dtype: str, rounding: float = 0.0) -> None:
        self.name, self.dtype = name, dtype
        self.bound = max(BOUNDS[dtype], AMPLIFIED * rounding)
        self.first: Tensor | None = None
        self.previous: Tensor | None = None
        self.previous_answer: Tensor | None = None
        self.rounding = 0.0
        self.unchanged = 0

    def judge(self, trainer: Tensor, answer: Tensor) -> float:
        """Mean |server - trainer| after a push, nats.

        Args:
            trainer: float32 [N], the trainer's values of the weights pushed.
            answer: float32 [N], the server's.

        Raises:
            StaleWeights: the server holds other weights.
        """
        d = float((answer - trainer).abs().mean())
        if not d <= self.bound:
            self._fail(d, trainer, answer)
        if self.first is None or self.previous is None or self.previous_answer is None:
            self.first, self.rounding = trainer, max(d, FLOORS[self.dtype])
        else:
            moved = float((trainer - self.first).abs().mean())
            if d > GROWTH * self.rounding and d > SHARE * moved:
                self._fail(d, trainer, answer)
            same = torch.equal(answer, self.previous_answer) and not torch.equal(trainer, self.previous)
            self.unchanged = self.unchanged + 1 if same else 0
            if self.unchanged >= FROZEN[self.dtype]:
                self._fail(d, trainer, answer)
        self.previous, self.previous_answer = trainer, answer
        return d

    def _fail(self, d: float, trainer: Tensor, answer: Tensor) -> None:
        earlier = [values for values in (self.previous, self.first) if values is not None]
        to_earlier = min((float((answer - values).abs().mean()) for values in earlier), default=float("inf"))
        if to_earlier < d / 2 or self.unchanged:
            what = "still holds the weights of an earlier push"
        elif earlier:
            what = "holds weights that are neither the new ones nor the old ones: a reload replaced a part of them"
        else:
            what = "does not hold the weights that were written to its folder"
        raise StaleWeights(
            "sampler",
            f"{self.name} {what}. On {answer.numel()} tokens of fixed sequences its log-probabilities are off by {d:.3g} nats on average",
            "Was it started on the folder in sampler.weights, on the same disk? If so, its build cannot reload weights as asked: set "
            f"serve: true, or start it with --worker-extension-cls whetstone_worker.Reload ({page('servers')}). Restarting the server on "
            "that folder makes this run's weights right once, and the next push wrong again.",
        )
