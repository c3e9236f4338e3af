"""The weights that decoding servers are given: whole in this process, or sharded and gathered one tensor at a time."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.engine import server_probe
from pipelines.engine.models import autocast
from pipelines.engine.parallel import Weights, World
from pipelines.engine.server_transfer import Source

END = "end"
"""What the first process asks for when it has pushed."""


class WholeWeights:
    """A model that the first process has.

    Args:
        model: of transformers, or a peft wrapper of one.
        world: the processes.
    """

    def __init__(self, model: Any, world: World) -> None:
        self.model, self.world, self.config = model, world, model.config

    def shared(self, state: Any) -> Any:
        """A state of the first process, which has pushed; every process must call."""
        return self.world.gather(state)[0]

    def source(self) -> Source:
        """Its tensors."""
        return Source(self.model)

    def write(self, folder: Path) -> None:
        """Write it as `save_pretrained` does."""
        self.model.save_pretrained(folder)

    def logps(self, tokens: list[list[int]], dtype: str) -> Tensor:
        """See `server_probe.trainer_logps`."""
        return server_probe.trainer_logps(self.model, tokens, dtype)


class ShardedWeights:
    """Weights of several processes. The first one uses it as a `WholeWeights`, and the others call `shared` to take part.

    One tensor at a time is gathered and freed, or one block of the network while it computes. Where a family's files hold other
    tensors than the model has in memory, `write` has the model whole on the first process.

    Args:
        weights: sharded; a full copy is not needed. They stay as they are until the push is over.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights, self.world = weights, weights.world
        self.model = weights.outline
        self.config = self.model.config
        self._gather = weights.gathers()

    def shared(self, state: Any) -> Any:
        """A state of the first process, which has pushed; until it comes, the others do what the first one asks for."""
        if self.world.rank == 0:
            self.world.gather((END, state))
            return state
        while (order := self.world.gather(None)[0])[0] != END:
            name, arguments = order
            getattr(self, name)(*arguments)
        return order[1]

    def source(self) -> Source:
        """Its tensors, each gathered when it is its turn."""
        return Source(self.model, lambda name: self._together("_gather", name))

    def write(self, folder: Path) -> None:
        """Write it as `save_pretrained` does."""
        self._together("_write", folder)

    def logps(self, tokens: list[list[int]], dtype: str) -> Tensor:
        """See `server_probe.trainer_logps`."""
        logps: Tensor = self._together("_logps", tokens, dtype)
        return logps

    def _together(self, name: str, *arguments: Any) -> Any:
        """What a method of this class returns here, while the others call it too."""
        self.world.gather((name, arguments))
        return getattr(self, name)(*arguments)

    def _write(self, folder: Path) -> None:
        self.weights.write(folder)

    def _logps(self, tokens: list[list[int]], dtype: str) -> Tensor:
        names = {id(module): name for name, module in self.weights.model.named_modules()}
        network = copy.deepcopy(self.model).eval()
        device = self.weights.policy.device
        network._apply(lambda value: value if value.is_meta else value.to(device))
        blocks = [network.get_submodule(names[id(layer)]) for layer in self.weights.policy.layers]

        def value(name: str) -> Tensor:
            return self._gather(name).float() if dtype == "float32" else self._gather(name)

        ids = torch.tensor(tokens, device=device)
        with torch.no_grad(), autocast(dtype, device), block_by_block(network, blocks, value):
            return server_probe.chosen_logps(network(input_ids=ids, use_cache=False).logits, ids)


Pushed = WholeWeights | ShardedWeights


@contextlib.contextmanager
def block_by_block(network: nn.Module, blocks: Sequence[nn.Module], value: Callable[[str], Tensor]) -> Iterator[None]:
    """A network without values computes meanwhile: the weights of a block are there while it does, all others until the end.

    Args:
        value: name → the weight; asked in the order in which the network computes, of tied ones once.
    """
    inside = {id(module): block for block in blocks for module in block.modules()}
    places: dict[nn.Module, list[tuple[nn.Module, str, str, nn.Parameter]]] = {part: [] for part in (network, *blocks)}
    for prefix, module in network.named_modules():
        for name, empty in module._parameters.items():
            if empty is not None:
                full = f"{prefix}.{name}" if prefix else name
                places[inside.get(id(module), network)].append((module, name, full, empty))

    def fill(part: nn.Module) -> None:
        values: dict[nn.Parameter, nn.Parameter] = {}
        for module, name, full, empty in places[part]:
            if empty not in values:
                values[empty] = nn.Parameter(value(full), requires_grad=False)
            module._parameters[name] = values[empty]

    def clear(part: nn.Module) -> None:
        for module, name, _, empty in places[part]:
            module._parameters[name] = empty

    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(lambda block, _: fill(block)).remove)
            stack.callback(block.register_forward_hook(lambda block, *_: clear(block)).remove)
        for part in places:
            stack.callback(clear, part)
        fill(network)
        yield
