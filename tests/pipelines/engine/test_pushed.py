"""What servers are given of sharded weights is what they are given of whole ones, a tensor or a block at a time."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
import toys
from rank_threads import Meeting, ThreadWorld

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine import server_probe, sharded_files
from pipelines.engine.parallel import Weights, World
from pipelines.engine.policy import Policy
from pipelines.engine.pushed import ShardedWeights, WholeWeights, block_by_block

FAMILIES = ["llama", "qwen2", "gpt2", "gemma2"]
TOKENS = [[5, 6, 7, 8], [9, 3, 2, 4]]


def sharded(model, world=None, asked=None):
    """A model as if it were sharded; `asked` gets the names of what is gathered."""
    values = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())

    def gather(name):
        if asked is not None:
            asked.append(name)
        return values[name].detach()

    weights = SimpleNamespace(
        world=world or World(), model=model, policy=Policy(model, Sampling()), outline=sharded_files.without_values(model),
        gathers=lambda: gather,
    )  # fmt: skip
    return ShardedWeights(weights)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_probe_computes_block_by_block(family, dtype):
    model, asked = toys.model(family), []
    pushed = sharded(model, asked=asked)
    assert torch.equal(pushed.logps(TOKENS, dtype), server_probe.trainer_logps(model, TOKENS, dtype))
    assert sorted(asked) == sorted(name for name, _ in model.named_parameters()), "each once, tied ones too"
    assert all(weight.is_meta for weight in pushed.model.parameters())


def test_a_block_s_weights_are_gone_when_the_next_one_computes():
    model = toys.model("qwen2")
    network = sharded_files.without_values(model)
    values, there = dict(model.named_parameters()), []
    blocks = list(network.model.layers)

    def value(name):
        there.append([all(w.is_meta for w in block.parameters()) for block in blocks].count(False))
        return values[name]

    with torch.no_grad(), block_by_block(network, blocks, value):
        network(torch.tensor(TOKENS))
    assert len(blocks) > 1 and max(there) == 1
    assert all(weight.is_meta for weight in network.parameters())


@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss"])
def test_tensors_are_those_of_the_whole_model(family):
    model = toys.model(family)
    pushed, whole = sharded(model).source(), WholeWeights(model, World()).source()
    assert pushed.update() == whole.update()
    for (name, tensor), (other, expected) in zip(pushed, whole, strict=True):
        assert name == other and torch.equal(tensor, expected)


def test_the_others_take_part_until_the_first_one_has_pushed():
    model, meeting, results = toys.model(), Meeting(2), {}
    asked = {0: [], 1: []}

    def run(rank):
        with meeting.turn:
            pushed = sharded(model, ThreadWorld(rank, meeting), asked[rank])
            if rank == 0:
                sent = dict(pushed.source())
                results["logps"] = pushed.logps(TOKENS, "float32")
                results["sent"] = len(sent)
            results[rank] = pushed.shared({"pushed": True} if rank == 0 else None)

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results[0] == results[1] == {"pushed": True}
    assert asked[0] == asked[1] and len(asked[0]) == 2 * results["sent"]
    assert torch.equal(results["logps"], server_probe.trainer_logps(model, TOKENS, "float32"))


def test_a_method_that_asks_the_policy_needs_the_full_copy():
    weights = object.__new__(Weights)
    weights.world, weights._copy = World(0, 2), None
    with pytest.raises(ModelError, match="no process has a full copy"):
        weights.full  # noqa: B018
