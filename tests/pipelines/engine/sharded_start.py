"""Run by test_sharded_files.py: models of several families, read shard by shard and written tensor by tensor by this world.

python sharded_start.py FOLDER FAMILY...
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models, parallel, server_probe, sharded_files
from pipelines.engine.policy import Policy
from pipelines.engine.pushed import ShardedWeights

TRAFFIC = "traffic"
PROBED = [[5, 6, 7, 8]]


class Held(TorchDispatchMode):
    """The most bytes of tensors that were alive at once, of those made meanwhile; what is read in place from a file is in none."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, DTensor):
                value = value.to_local()
            if not isinstance(value, torch.Tensor) or value.is_meta:
                continue
            storage = value.untyped_storage()
            key = storage._cdata
            if key not in self.known and storage.filename is None:
                self.known.add(key)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, key, storage.nbytes())
        return out

    def _gone(self, key, size):
        self.known.discard(key)
        self.now -= size


class Traffic(TorchDispatchMode):
    """How often ranks gather weights and sum gradients, and the bytes of each."""

    def __init__(self):
        super().__init__()
        self.calls, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for name, number in (("_allgather_base_", 0), ("_reduce_scatter_base_", 1)):
            if name in str(function):
                self.calls[name] += 1
                self.bytes[name] += args[number].nbytes
        return function(*args, **(kwargs or {}))


PASSES = 3


def gradients(policy, backward) -> None:
    """Those of three passes, the same on every rank."""
    for number in range(PASSES):
        tokens = torch.arange(1, 25).view(2, 12).roll(number, 1)
        mask = torch.arange(12).expand(2, 12) > 4
        backward(policy.logp(tokens, mask).logp.sum(), last=number == PASSES - 1)


def traffic(path: Path, world: parallel.World) -> dict[str, tuple[Counter, Counter]]:
    """Of an update, by dtype and by when gradients are summed, whose sum is that of one process to the bit."""
    measured = {}
    for dtype in ("float32", "bfloat16"):
        settings = Model(path=str(path), dtype=dtype)
        one = models.load_model(path, settings)
        gradients(Policy(one, Sampling(), dtype=dtype), lambda loss, last: loss.backward())
        for sync in ("pass", "update"):
            network, unread = sharded_files.outline(path, settings)
            policy = Policy(network, Sampling(), dtype=dtype)
            weights = parallel.Weights(network, policy, world, unread=unread, gradient_sync=sync)
            mean = lambda loss, last, weights=weights: weights.backward(loss / world.size, last=last)  # noqa: E731
            with Traffic() as moved:
                gradients(policy, mean)
            for name, weight in network.named_parameters():
                assert torch.equal(weight.grad.full_tensor(), one.get_parameter(name).grad), (dtype, sync, name)
            measured[f"{dtype} {sync}"] = moved.calls, moved.bytes
    return measured


def main() -> None:
    torch.set_num_threads(1)
    folder, world = Path(sys.argv[1]), parallel.World.join()
    measured = {}
    for family in sys.argv[2:]:
        path = folder / family
        settings = Model(path=str(path))
        tokenizer = models.load_tokenizer(path)
        whole = models.load_model(path, settings)
        with Held() as reading:
            network, unread = sharded_files.outline(path, settings)
            policy = Policy(network, Sampling())
            checked, policy.check_head = policy.check_head, lambda: None
            weights = parallel.Weights(network, policy, world, unread=unread)
        policy.check_head = checked
        policy.scorer.check_head()
        shard = sum(weight.to_local().nbytes for weight in weights._trained().values())
        full = {name: weight.nbytes for name, weight in whole.named_parameters()}
        with Held() as writing:
            weights.save(tokenizer, folder / "out" / family, {})
        pushed = ShardedWeights(weights)
        (folder / "pushed" / family).mkdir(parents=True, exist_ok=True)
        with Held() as pushing:
            if world.rank == 0:
                for _, tensor in pushed.source():
                    del tensor
                pushed.write(folder / "pushed" / family)
            pushed.shared(None)
        with Held() as probing:
            logps = pushed.logps(PROBED, "float32") if world.rank == 0 else None
            pushed.shared(None)
        assert logps is None or torch.equal(logps, server_probe.trainer_logps(whole, PROBED, "float32"))
        for name, weight in weights._trained().items():
            assert torch.equal(weight.full_tensor(), whole.get_parameter(name)), name
        buffers = dict(network.named_buffers())
        assert buffers.keys() == dict(whole.named_buffers()).keys()
        assert all(torch.equal(buffers[name], value) for name, value in whole.named_buffers())
        with weights.gathered() as copied:
            ids = torch.arange(1, 9)[None]
            with torch.no_grad():
                assert torch.equal(copied(ids).logits, whole(ids).logits)
        measured[family] = {
            "reading": reading.peak, "writing": writing.peak, "pushing": pushing.peak, "probing": probing.peak,
            "shard": shard, "largest": max(full.values()),
            "whole": sum(full.values()),
        }  # fmt: skip
    measured[TRAFFIC] = traffic(folder / sys.argv[2], world)
    torch.save(measured, folder / f"measured{world.rank}.pt")


if __name__ == "__main__":
    main()
