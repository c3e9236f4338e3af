"""Where weights are trained: in the stage's own processes, or on a server of the Tinker protocol.

Both make the same things: the policy that scores tokens, the weights that take a loss backwards and are committed, and what an optimizer
step is made with. Whoever trains asks the engine for them and does not know which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.engine import optimizer, parallel
from pipelines.engine.optimizer import Stepper
from pipelines.engine.policy import Policy

if TYPE_CHECKING:
    import torch

    from pipelines.contract.model_settings import Model
    from pipelines.contract.rollout import Sampler
    from pipelines.contract.sampling import Sampling
    from pipelines.engine.tinker.engine import TinkerEngine
    from pipelines.recipe.training import Optimizer


class InProcess:
    """The weights are in this process, or sharded over several."""

    remote: ClassVar[bool] = False
    network: ClassVar[Any] = None
    """The network that is trained, where the engine has it; None where the stage loads it."""

    def policy(self, model: Any, sampling: Sampling, *, dtype: str) -> Policy:
        """Arguments as in `Policy`."""
        return Policy(model, sampling, dtype=dtype)

    def weights(self, model: Any, policy: Policy, world: parallel.World, entry: Any = None, **settings: Any) -> Any:
        """Arguments as in `parallel.Weights`."""
        return parallel.Weights(model, policy, world, entry, **settings)

    def optimizer(self, model: Any, settings: Optimizer) -> torch.optim.Optimizer:
        """Of the trainable weights."""
        return optimizer.make(model, settings)

    def stepper(self, of: torch.optim.Optimizer, settings: Optimizer, total: int, max_bad: int) -> Stepper:
        """Arguments as in `Stepper`."""
        return Stepper(of, settings, total, max_bad)

    def sampler(self, stop: Sequence[int], context: int) -> Sampler | None:
        """None: whoever samples does it with the weights, in its own way."""
        return None

    def close(self) -> None:
        """Nothing to end."""


def engine_of(
    settings: Any, model: Model, start: str | None, *, seed: int, event: Callable[..., None]
) -> InProcess | TinkerEngine:
    """The engine that a stage's settings name.

    Args:
        settings: of a stage that trains.
        model: the recipe's section.
        start: model folder to continue with; None for the recipe's own model.
        seed: of fresh adapters.
        event: told what the server is like.

    Raises:
        ModelError: the server is of no use: says why.
    """
    if getattr(settings, "engine", None) is None:
        return InProcess()
    from pipelines.engine.tinker.engine import TinkerEngine

    return TinkerEngine(settings.engine, model, start, seed=seed, event=event)
