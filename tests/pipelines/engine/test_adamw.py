"""AdamW over weights stored in bfloat16: unbiased rounding, torch's arithmetic, resume to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipelines.engine import adamw

FINITE = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@given(st.lists(FINITE, min_size=1, max_size=9), st.integers(0, 2**31))
def test_rounding_goes_to_a_neighbour(values, seed):
    exact = torch.tensor(values)
    rounded = adamw.round_stochastically(exact.clone(), torch.Generator().manual_seed(seed))
    assert torch.equal(rounded, rounded.bfloat16().float()), "numbers that bfloat16 holds"
    toward_zero = (exact.view(torch.int32) & -0x10000).view(torch.float32)
    away = ((exact.view(torch.int32) & -0x10000) + 0x10000).view(torch.float32)
    assert ((rounded == toward_zero) | ((rounded == away) & (exact != toward_zero))).all()


@pytest.mark.parametrize("share", [1 / 65536, 0.1, 0.5, 0.97])
def test_rounding_keeps_the_expected_value(share):
    """Each of the four numbers that are cut from one random word, by itself."""
    count, gap = 400_000, 2.0**-7
    values = torch.full((count,), 1.0 + share * gap)
    up = (adamw.round_stochastically(values, torch.Generator().manual_seed(0)) > 1).view(-1, 4).double().mean(0)
    assert (up - share).abs().max() < 5 * (share * (1 - share) / (count / 4)) ** 0.5 + 1e-6


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800001, -0x400000, -1, -0x8000, -0x7FFFFF])
def test_what_is_not_finite_stays_so(bits):
    """A GPU's NaN has all bits set: with the noise it would be -0, a negative one 0, and one with the lowest bit alone infinite."""
    values = torch.tensor([float("inf"), -float("inf"), 0.0])
    values.view(torch.int32)[2] = bits
    rounded = adamw.round_stochastically(values.repeat(1000), torch.Generator().manual_seed(0)).view(1000, 3)
    assert (rounded[:, 0] == float("inf")).all() and (rounded[:, 1] == -float("inf")).all()
    assert rounded[:, 2].isnan().all()


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda weight: weight.t().contiguous().t(),
        lambda weight: torch.cat([weight, weight], 1)[:, : weight.shape[1]],
        lambda weight: weight.view(2, 3, 10, 50).contiguous(memory_format=torch.channels_last),
    ],
    ids=["transposed", "a part of another", "channels last"],
)
def test_a_weight_may_lie_in_memory_in_any_order(laid_out):
    """It has the updates of one that lies in order, to the bit: the noise follows the indices."""
    torch.manual_seed(0)
    start, gradients = torch.randn(60, 50).bfloat16(), torch.randn(3, 60, 50).bfloat16()
    other = torch.nn.Parameter(laid_out(start))
    plain = torch.nn.Parameter(start.view(other.shape).clone())
    assert plain.is_contiguous() and not other.is_contiguous()
    for weight in (plain, other):
        optimizer = adamw.make([weight], lr=1e-2)
        for gradient in gradients:
            weight.grad = torch.empty_like(weight).copy_(gradient.view(weight.shape))
            optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(plain, other) and not torch.equal(plain, start.view(plain.shape))


def stepped(weight):
    """A weight after one step with equal gradients everywhere."""
    weight = torch.nn.Parameter(weight)
    weight.grad = torch.ones_like(weight)
    adamw.make([weight], lr=1e-3).step()
    return weight.detach()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shards_are_rounded_like_the_whole_weight(size):
    """Those of uneven length, in the middle of a chunk, and an empty one, too. What every process holds in full, all round alike."""
    whole = torch.ones(7, 50_000, dtype=torch.bfloat16)
    assert whole.numel() > adamw.CHUNKS["cpu"]
    shards = []
    for rank in range(size):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            mesh = init_device_mesh("cpu", (size,))
            rows = whole.split(-(-7 // size))
            own = rows[rank] if rank < len(rows) else whole[:0]
            shard = DTensor.from_local(own.clone(), mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
            shards.append(stepped(shard).to_local())
        finally:
            torch.distributed.destroy_process_group()
    expected = stepped(whole.clone())
    assert 0 < int((expected != 1).sum()) < whole.numel() and torch.equal(torch.cat(shards), expected)
    assert torch.equal(stepped(whole.clone()), expected)


def test_small_updates_arrive_on_average():
    """Each step moves a weight by a thousandth of the gap to its neighbour; rounded to nearest none would ever move."""
    weight = torch.nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))
    optimizer = adamw.make([weight], lr=2.0**-7 / 1000, weight_decay=0.0)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    moved = float(1 - weight.detach().float().mean()) / (2.0**-8)  # below 1 the gap is half as wide
    assert moved == pytest.approx(0.2, abs=0.01)


def test_the_arithmetic_is_that_of_torch():
    """In one step, up to rounding to a neighbour; float32 weights beside bfloat16 ones to the bit; several chunks."""
    torch.manual_seed(0)
    start = [torch.randn(700, 500).bfloat16(), torch.randn(33)]
    ours = [torch.nn.Parameter(t.clone()) for t in start]
    exact = [torch.nn.Parameter(t.float()) for t in start]
    settings = {"lr": 3e-2, "betas": (0.9, 0.95), "eps": 1e-8}
    mine = adamw.make(
        [{"params": ours[:1], "weight_decay": 0.1}, {"params": ours[1:], "weight_decay": 0.0}], **settings
    )
    assert isinstance(mine, adamw.RoundingAdamW) and start[0].numel() > adamw.CHUNKS["cpu"]
    theirs = torch.optim.AdamW(
        [{"params": exact[:1], "weight_decay": 0.1}, {"params": exact[1:], "weight_decay": 0.0}], **settings, fused=True
    )
    for weight, reference in zip(ours, exact, strict=True):
        gradient = torch.randn(weight.shape).to(weight.dtype)
        weight.grad, reference.grad = gradient, gradient.float()
    mine.step()
    theirs.step()
    assert torch.equal(ours[1], exact[1])
    gap = (ours[0].detach().float() - exact[0].detach()).abs() / exact[0].detach().abs()
    assert 0 < float(gap.max()) <= 2.0**-7
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(mine.state[ours[0]][name], theirs.state[exact[0]][name])


def test_a_resumed_run_has_the_same_weights():
    """The moments stay float32 on the way through a state, which torch's own loading would make bfloat16."""
    torch.manual_seed(0)
    gradients = torch.randn(6, 90, 10).bfloat16()

    def run(weight, optimizer, steps):
        for step in steps:
            weight.grad = gradients[step].clone()
            optimizer.step()

    weight = torch.nn.Parameter(torch.randn(90, 10).bfloat16())
    optimizer = adamw.make([weight], lr=1e-3)
    run(weight, optimizer, range(3))
    again, state = torch.nn.Parameter(weight.detach().clone()), copy.deepcopy(optimizer.state_dict())
    run(weight, optimizer, range(3, 6))
    resumed = adamw.make([again], lr=1e-3)
    resumed.load_state_dict(state)
    run(again, resumed, range(3, 6))
    assert torch.equal(weight, again)
    assert resumed.state[again]["exp_avg"].dtype == torch.float32
    assert not torch.equal(optimizer.state[weight]["exp_avg_sq"], optimizer.state[weight]["exp_avg_sq"].bfloat16())


def test_float32_weights_get_the_fused_adamw():
    optimizer = adamw.make([torch.nn.Parameter(torch.ones(3))], lr=1e-3)
    assert type(optimizer) is torch.optim.AdamW and optimizer.defaults["fused"]
