"""Several processes, one gradient: weights sharded with FSDP2, rollouts and passes split between processes.

The forward and backward passes are shared between processes: the gradient is the sum over processes, so it is that of one process up to
float rounding. Each process reads its shard alone from the model's files, where they allow
it. In RLVR each also decodes its part of the prompts from a full copy of the weights, and keeps these rows where the methods allow it
(`pipelines/rlvr/own_rows.py`). Random streams belong to groups, rows and passes, never to a process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipelines.base.errors import ModelError
from pipelines.engine import models
from pipelines.engine.adamw import first_row, local
from pipelines.engine.checkpoint import Pieces, check_names, trainable_state
from pipelines.recipe.training import GradientSync
from pipelines.stage.launch import STORE

if TYPE_CHECKING:
    from pipelines.engine.policy import Policy
    from pipelines.engine.sharded_files import Unread


WAIT = timedelta(days=30)
"""How long a process waits for others that decode, score or read data meanwhile."""
Item = TypeVar("Item")
Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class World:
    """Which process this is, and of how many."""

    rank: int = 0
    size: int = 1
    received: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    """Bytes that this process got from others, as `bytes`; tensors of weights and gradients are not counted."""

    @classmethod
    def join(cls, *, tensors: bool = True) -> World:
        """The world that `pipelines.stage.launch` describes in the environment; alone where there is none.

        Args:
            tensors: whether tensors on GPUs are exchanged too. Where they are not, a process may wait for the others for days.

        Raises:
            ModelError: several processes, and no place to meet that only they can reach.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not dist.is_initialized():
            backend, rank = "gloo", int(os.environ["RANK"])
            if torch.cuda.is_available():
                backend = "nccl" if tensors else backend
                torch.cuda.set_device(models.device())  # what ranks gather goes through the current one
            dist.init_process_group(
                backend, store=_store(os.environ.get(STORE, ""), rank, size), rank=rank, world_size=size,
                timeout=None if tensors else WAIT,
            )  # fmt: skip
        return cls(dist.get_rank(), size)

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, in the order of ranks; every process must call."""
        if self.size == 1:
            return [value]
        from pipelines.engine import wire

        pickled: list[bytes] = [b""] * self.size
        dist.all_gather_object(pickled, wire.dumps(value))
        return self._opened(pickled, value)

    def gather_first(self, value: Any) -> list[Any]:
        """As `gather` on the first process, and nothing on the others; every process must call."""
        if self.size == 1:
            return [value]
        from pipelines.engine import wire

        pickled: list[bytes] = [b""] * self.size
        dist.gather_object(wire.dumps(value), pickled if self.rank == 0 else None)
        return self._opened(pickled, value) if self.rank == 0 else []

    def send(self, pairs: Iterable[tuple[int, int]], outgoing: Mapping[int, Any]) -> list[Any]:
        """What other processes send to this one, in the order of pairs; every process must call.

        Args:
            pairs: (sender, receiver), each once and the same on every process.
            outgoing: receiver → what this process sends to it.
        """
        from pipelines.engine import wire

        arrived = []
        for sender, receiver in sorted(pairs):
            if self.rank == sender:
                dist.send_object_list([wire.dumps(outgoing[receiver])], dst=receiver)
            elif self.rank == receiver:
                box: list[Any] = [None]
                dist.recv_object_list(box, src=sender)
                self.received["bytes"] += len(box[0])
                arrived.append(wire.loads(box[0]))
        return arrived

    def _opened(self, pickled: list[bytes], own: Any) -> list[Any]:
        """The values of all processes; this one's is `own` itself."""
        from pipelines.engine import wire

        self.received["bytes"] += sum(map(len, pickled)) - len(pickled[self.rank])
        return [own if rank == self.rank else wire.loads(each) for rank, each in enumerate(pickled)]

    def gather_all(self, items: Iterable[Item]) -> list[Item]:
        """The items of every process in one list, in the order of ranks; every process must call."""
        return list(chain.from_iterable(self.gather(list(items))))

    def total(self, value: Number) -> Number:
        """The sum of a number, or of a tensor of one shape, over all processes, the same on each; every process must call."""
        if self.size == 1:
            return value
        first, *others = self.gather(value.cpu() if isinstance(value, Tensor) else value)
        return sum(others, first)

    def share(self, items: Sequence[Any]) -> list[Any]:
        """This process's shard of a list that all processes hold."""
        return list(items[self.rank :: self.size])

    def joined(self, shard: Sequence[Item]) -> list[Item]:
        """The list of which each process has its `share`; every process must call."""
        shards = self.gather(list(shard))
        return [shards[place % self.size][place // self.size] for place in range(sum(map(len, shards)))]

    def share_evenly(self, items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
        """This process's shard, as long as every other's, and of each item whether it counts: False for a repeat.

        For work that all processes must do equally often, such as passes through sharded weights. Items are made one at a time.
        """
        repeated: list[Item] = []
        count = 0
        for item in items:
            if count == 0 and self.size > 1:
                repeated.append(item)
            if count % self.size == self.rank:
                yield item, True
            count += 1
        if 0 < count % self.size <= self.rank:
            yield repeated[0], False


def with_last(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Each item, and whether it is the last."""
    iterator = iter(items)
    for item in iterator:
        for following in iterator:
            yield item, False
            item = following
        yield item, True


def _store(place: str, rank: int, size: int) -> dist.Store:
    """Where ranks meet: a private file on one machine, or a socket bound to one address of the first machine."""
    kind, _, where = place.partition(":")
    if kind == "file":
        return dist.FileStore(where, size)
    if kind != "tcp":
        raise ModelError(
            "processes",
            "several ranks need a private place to meet",
            "Start them with `python -m pipelines.stage.launch`, not torchrun: its store listens on every interface and unpickles what "
            "it is sent.",
        )
    host, _, port = where.rpartition(":")
    if rank != 0:
        return dist.TCPStore(host, int(port), size, is_master=False)
    listener = socket.create_server((host, int(port)))
    return dist.TCPStore(host, int(port), size, is_master=True, master_listen_fd=listener.detach())


class Weights:
    """The trained weights: plain tensors in one process, sharded over several.

    Args:
        model: a causal LM or a peft wrapper of one, on its device; or one whose weights have no values yet.
        policy: the blocks that are sharded one by one.
        world: the processes.
        entry: what every training pass goes through, with all parameters of the model; default: the policy's scorer.
        unread: where the weights are read from, of a model without values; each process reads its shard alone.
        keeps_copy: keep a full copy of sharded weights, which decoding reads and `refresh` updates.
        gradient_sync: as in the settings of a stage that trains.

    Raises:
        ModelError: weights that are read are not finite, or the model computes its logits in a way that the engine does not know.
    """

    def __init__(
        self, model: Any, policy: Policy, world: World, entry: Any = None, *, unread: Unread | None = None,
        keeps_copy: bool = False, gradient_sync: GradientSync = "pass",
    ) -> None:  # fmt: skip
        self.model, self.policy, self.world, self.gradient_sync = model, policy, world, gradient_sync
        self.entry: Any = policy.scorer if entry is None else entry
        self._copy: Any = None
        if world.size > 1:
            from pipelines.engine import sharded_files

            self.outline = sharded_files.without_values(model)
            """The model as it was before it was sharded, without values."""
            self._shard(unread)
            if keeps_copy:
                self._copy = sharded_files.copy_of(self.outline, policy.device)
                self.refresh()

    def _shard(self, unread: Unread | None) -> None:
        """Shard the weights, and read those that have no values yet."""
        from pipelines.engine import sharded_files, sharding

        sharding.shard(self.model, self.policy, self.entry, self.world.size)
        if unread is not None:
            sharded_files.allocate(self.entry, self.policy.device)
            unread.refuse(self.world.gather_all(unread.fill(self.policy.causal)))
            sharding.check_head(self.entry)
            self._trained()  # an optimizer must find the shards

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of a process's pass to those before; after the last pass of an update it is the sum over processes.

        Args:
            last: whether it is the last pass of the update; all processes have equally many.
        """
        if self.world.size > 1:
            self.entry.set_requires_gradient_sync(last or self.gradient_sync == "pass")
        (loss * self.world.size).backward()  # gradients are averaged over processes

    @property
    def has_full(self) -> bool:
        """Whether all weights are in this process."""
        return self.world.size == 1 or self._copy is not None

    @property
    def full(self) -> Any:
        """The weights that decoding reads: the model itself, or the full copy that is kept.

        Raises:
            ModelError: sharded weights without a copy.
        """
        if not self.has_full:
            raise ModelError(
                "rlvr.full_copy",
                "a method asks the policy itself, and no process has a full copy of its weights",
                "Leave full_copy: false out.",
            )
        return self.model if self.world.size == 1 else self._copy

    def _trained(self) -> dict[str, Any]:
        """The weights by name, each as its shard where they are sharded."""
        if self.world.size > 1:
            self.entry.reshard()  # a pass without gradient leaves what is not in a block whole
        return dict(self.model.named_parameters())

    def gathers(self) -> Callable[[str], Tensor]:
        """What gathers a weight or buffer by its name; every process must call it, for the same names in the same order."""
        self._trained()
        values = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        return lambda name: _full(values[name]).detach()

    @torch.no_grad()
    def _gather_into(self, copied: Any) -> None:
        """Give a full copy the present weights; every process must call, and those without a copy keep nothing."""
        weights = None if copied is None else dict(copied.named_parameters())
        for name, shard in self._trained().items():
            tensor = _full(shard)
            if weights is not None:
                weights[name].copy_(tensor)

    def refresh(self) -> None:
        """Update the full copy, where one is kept; every process must call."""
        if self._copy is not None:
            self._gather_into(self._copy)

    @contextlib.contextmanager
    def gathered(self, *, first: bool = False) -> Iterator[Any]:
        """The model with all weights: itself, the copy that is kept, or one for the time being. Every process must call.

        Args:
            first: the first process alone has it, and the others get None.
        """
        self.refresh()
        if self.world.size == 1 or self._copy is not None:
            yield self.full if self.world.rank == 0 or not first else None
            return
        from pipelines.engine import sharded_files

        absent = first and self.world.rank > 0
        copied = None if absent else sharded_files.copy_of(self.outline, self.policy.device)
        self._gather_into(copied)
        yield copied

    def save(self, tokenizer: Any, folder: Path, about: dict[str, Any]) -> None:
        """Write the folder of a causal LM, tensor by tensor where the weights are sharded; every process must call."""
        if self.world.size == 1:
            models.save_model(self.model, tokenizer, folder, about)
            return
        if self.world.rank == 0:
            models.save_around(self.outline, tokenizer, folder, about)
        self.write(folder)

    def write(self, folder: Path) -> None:
        """Write sharded weights and their configuration into a folder as `save_pretrained` does; every process must call."""
        from pipelines.engine import sharded_files

        first = self.world.rank == 0
        if sharded_files.stored_as_they_are(self.outline):
            sharded_files.write(self.outline, folder, self.gathers(), first=first)
            return
        with self.gathered(first=True) as model:
            if model is not None:
                model.generation_config = self.outline.generation_config  # `save` has set its ids
                model.save_pretrained(folder)

    def state(self) -> dict[str, Tensor]:
        """What training changes: all weights, or the adapters alone under LoRA; each as its shard where they are sharded."""
        self._trained()
        return trainable_state(self.model)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor | Pieces]) -> None:
        """Load the output of `state`, of any number of processes.

        Raises:
            ModelError: it is of another model.
        """
        check_names(self.model, state)
        trained = self._trained()
        for name, value in state.items():
            local(trained[name]).copy_(_own_rows(value, trained[name]))
        self.refresh()


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what an optimizer of any number of processes has committed, sharded as the parameters are."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    shaped = {
        number: {k: _like(v, weights[number]) if v.shape == weights[number].shape else v for k, v in entry.items()}
        for number, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": shaped})


def _own_rows(value: Tensor | Pieces, weight: Tensor) -> Tensor:
    """The rows of a committed tensor that this process has of a weight; of one that is not sharded all."""
    if not isinstance(value, Pieces) and not isinstance(weight, DTensor):
        return value
    first, count = first_row(weight), len(local(weight))
    return value.rows(first, count) if isinstance(value, Pieces) else value[first : first + count].clone()


def _full(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _like(value: Tensor | Pieces, weight: Tensor) -> Tensor:
    """A committed tensor of a weight's shape, sharded as the weight is."""
    rows = _own_rows(value, weight).to(weight.device)
    if not isinstance(weight, DTensor):
        return rows
    return DTensor.from_local(
        rows, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
