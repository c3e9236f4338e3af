"""The remote engine: what a stage that trains asks of it, by way of a session with the server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.base.files import read_object, write_atomic
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models, optimizer, parallel
from pipelines.engine.tinker.policy import RemotePolicy
from pipelines.engine.tinker.probe import probe
from pipelines.engine.tinker.sampler import TinkerSampler
from pipelines.engine.tinker.session import Session
from pipelines.recipe.model_path import ADAPTER
from pipelines.recipe.server import RemoteEngine
from pipelines.recipe.training import Optimizer

if TYPE_CHECKING:
    from pipelines.engine.policy import Policy

CHECKPOINT = "tinker_checkpoint"
"""In a commit, and in `whetstone.json` beside weights that a remote engine trained: where they are on the server."""


class TinkerEngine:
    """Adapters that a server of the Tinker protocol trains; arguments as in `pipelines.engine.in_process.engine_of`.

    Raises:
        ModelError: the server does not answer, has not the base model or the weights to start from, or does not compute gradients that
            are linear in what it is sent.
    """

    remote: ClassVar[bool] = True

    def __init__(
        self, settings: RemoteEngine, model: Model, start: str | None, *, seed: int, event: Callable[..., None]
    ) -> None:
        self.settings, self.model = settings, model
        base = model.path or ""
        self.session = Session(settings, settings.base_model or base, seed=seed)
        kept = _trained(start) if start and start != base else None
        if kept is not None:
            self.session.load(kept, optimizer=False)
        self.network = _outline(base, model)
        vocabulary = self.network.config.get_text_config().vocab_size
        probe(self.session, [number % vocabulary for number in range(1, 9)], event)
        self.start = self.session.save_for_sampler() if kept is not None else None
        """Where the weights are that the run started from; None for the base model itself."""

    def policy(self, model: Any, sampling: Sampling, *, dtype: str) -> Policy:
        """The server's dtype is its own."""
        return RemotePolicy(model, self.session, self.start, sampling)

    def weights(self, model: Any, policy: Policy, world: parallel.World, entry: Any = None, **settings: Any) -> Any:
        """What is committed and handed on."""
        return RemoteWeights(self, world)

    def optimizer(self, model: Any, settings: Optimizer) -> Any:
        """It is on the server."""
        return RemoteOptimizer()

    def stepper(self, optimizer_of: Any, settings: Optimizer, total: int, max_bad: int) -> RemoteStepper:
        """Arguments as in `optimizer.Stepper`."""
        return RemoteStepper(self.session, settings, total)

    def sampler(self, stop: Sequence[int], context: int) -> TinkerSampler:
        """What decodes with the present weights."""
        return TinkerSampler(self.session, stop=stop, context=context)

    def close(self) -> None:
        """Hang up."""
        self.session.close()


class RemoteOptimizer:
    """The server's: its state is in the server's checkpoint."""

    param_groups: ClassVar[list[Any]] = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """There is nothing here."""

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {"state": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


class RemoteStepper(optimizer.Stepper):
    """The schedule of the learning rate; clipping and the step are the server's."""

    def __init__(self, session: Session, settings: Optimizer, total: int) -> None:
        super().__init__(RemoteOptimizer(), settings, total, 1)  # type: ignore[arg-type]
        self.session = session

    def step(self, number: int) -> dict[str, float]:
        """As in `Stepper`; `grad_norm` where the server tells one."""
        learning_rate = optimizer.rate(self.settings, number, self.total) * self.scale
        beta1, beta2 = self.settings.betas
        measured = self.session.step(
            learning_rate=learning_rate, beta1=beta1, beta2=beta2, eps=self.settings.eps,
            weight_decay=self.settings.weight_decay, grad_clip_norm=self.settings.max_grad_norm,
        )  # fmt: skip
        norms = [value for name, value in measured.items() if name.endswith("grad_norm")]
        return {"learning_rate": learning_rate, "skipped_steps": 0.0, **({"grad_norm": norms[0]} if norms else {})}


class RemoteWeights:
    """The adapters on the server, with the interface of `parallel.Weights`."""

    has_full: ClassVar[bool] = False

    def __init__(self, engine: TinkerEngine, world: parallel.World) -> None:
        self.engine, self.session, self.world = engine, engine.session, world
        self.model = self.outline = self.full = engine.network
        """The network without values, for its configuration."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Send the loss's derivatives by the log-probabilities of the pass."""
        if loss.requires_grad:
            loss.backward()

    def refresh(self) -> None:
        """Nothing is kept here."""

    def state(self) -> dict[str, str]:
        """Where the server keeps weights and optimizer as they are now."""
        return {CHECKPOINT: self.session.save()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Weights and optimizer of a commit."""
        self.session.load(str(state[CHECKPOINT]), optimizer=True)

    def _merged(self, adapter: Path) -> Any:
        """The base model with the adapters, which are downloaded into a folder."""
        from peft import PeftModel

        path = self.session.save_for_sampler()
        self.session.download(path, adapter)
        config = adapter / "adapter_config.json"
        named = (read_object(config) or {}) | {
            "base_model_name_or_path": self.engine.model.path
        }  # not as the server calls it
        write_atomic(config, json.dumps(named, indent=2))
        base = models.load_model(self.engine.model.path or "", self.engine.model)
        return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()

    def save(self, tokenizer: Any, folder: Path, about: dict[str, Any]) -> None:
        """Write the merged model, the adapters beside it, and where the server keeps them, for a stage that goes on there."""
        adapter = folder.parent / ADAPTER
        adapter.mkdir(parents=True, exist_ok=True)
        about = about | {CHECKPOINT: self.session.save(), "rank": self.engine.settings.rank}
        models.save_model(self._merged(adapter), tokenizer, folder, about)


def _trained(start: str) -> str:
    """Where the server keeps the weights that an earlier stage trained there.

    Args:
        start: that stage's model folder.

    Raises:
        ModelError: they were trained elsewhere.
    """
    about = read_object(Path(start) / "whetstone.json", **{CHECKPOINT: str}) or {}
    if about.get(CHECKPOINT) is None:
        raise ModelError(
            "engine",
            f"the server has the base model, and {Path(start).name} was trained elsewhere",
            "Train it with the same `engine`, or start from the recipe's model.",
        )
    return str(about[CHECKPOINT])


def _outline(path: str, model: Model) -> Any:
    """The network of a folder or hub name without values, with its generation config.

    Raises:
        ModelError: it has no readable configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    where = models.local(path)
    try:
        config = AutoConfig.from_pretrained(where, revision=model.revision)
    except (OSError, ValueError) as error:
        raise ModelError("model.path", f"{path} has no readable configuration: {str(error)[:300]}") from error
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    with contextlib.suppress(OSError):
        network.generation_config = GenerationConfig.from_pretrained(where, revision=model.revision or "main")
    return network.eval()
