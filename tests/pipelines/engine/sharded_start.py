"""Run by test_sharded_files.py: models of several families, read shard by shard and written tensor by tensor by this world.

python sharded_start.py FOLDER FAMILY...
"""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models, parallel, sharded_files
from pipelines.engine.policy import Policy


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
            "reading": reading.peak, "writing": writing.peak, "shard": shard, "largest": max(full.values()),
            "whole": sum(full.values()),
        }  # fmt: skip
    torch.save(measured, folder / f"measured{world.rank}.pt")


if __name__ == "__main__":
    main()
