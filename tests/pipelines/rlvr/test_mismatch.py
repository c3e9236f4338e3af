"""Healthy rounding passes and every kind of fault is named, in float32 and in bfloat16."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import Interrupted
from pipelines.contract.sampling import Mismatch
from pipelines.rlvr.mismatch import MismatchMonitor, Tokens, measure, outlier

ROWS, WIDTH, PROMPT = 64, 60, 20
NOISE = {"float32": 2e-6, "bfloat16": 0.03}
"""Standard deviation of d in a healthy run, nats."""


def tokens(dtype="bfloat16", seed=0, fault=None):
    """A step's comparison: rounding alone, or with a fault put into it."""
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.arange(WIDTH) >= PROMPT).expand(ROWS, -1).clone()
    sampled = -2 * torch.rand(ROWS, WIDTH, generator=draw)
    logp = sampled + NOISE[dtype] * torch.randn(ROWS, WIDTH, generator=draw)
    if fault is not None:
        logp = fault(logp)
    columns = {
        "mask": mask,
        "sampled_now": torch.ones_like(mask),
        "on_policy": torch.ones(ROWS, dtype=torch.bool),
        "logp_old": sampled,
        "group": torch.arange(ROWS) // 8,
    }
    return Tokens.of(columns, logp, torch.arange(ROWS * WIDTH).view(ROWS, WIDTH), torch.arange(ROWS))


def set_at(rows, columns, value):
    def fault(logp):
        logp = logp.clone()
        logp[rows, columns] += value
        return logp

    return fault


@pytest.mark.parametrize("dtype", NOISE)
def test_rounding_is_no_fault(dtype):
    monitor = MismatchMonitor(Mismatch(), dtype)
    for step in range(20):
        metrics, warning = monitor.judge(tokens(dtype, step))
        assert warning is None
    assert 0.5 * NOISE[dtype] < metrics["mismatch/mean"] < 1.5 * NOISE[dtype] and metrics["mismatch/ess"] > 0.99


def test_float32_names_the_first_token_that_is_off():
    broken = tokens("float32", fault=set_at(5, slice(30, 40), 0.01))
    with pytest.raises(Interrupted, match=f"row 5, position 30, token id {5 * WIDTH + 30}: the sampler's log-prob is"):
        MismatchMonitor(Mismatch(), "float32").judge(broken)
    _, text = MismatchMonitor(Mismatch(on_breach="warn"), "float32").judge(broken)
    assert "10 tokens over it" in text


FAULTS = {
    "one token of another": (set_at(3, 33, -6.0), "row 3, position 33"),
    "every token a little": (set_at(slice(None), slice(None), 0.2), "mean is"),
    "one row": (set_at(7, slice(None), 0.4), "row 7 is off by 0[.](39|4)"),
    "first sampled position": (set_at(slice(None), PROMPT, 0.4), "position 0 is off by 0[.](39|4)"),
    "last sampled position": (
        set_at(slice(None), WIDTH - 1, -0.4),
        f"position {WIDTH - PROMPT - 1} is off by 0[.](39|4)",
    ),
    "rows of one prompt": (set_at(slice(8, 16), slice(None), 0.25), "is off by 0.2"),
    "no number": (set_at(9, 25, float("nan")), "row 9, position 25"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bfloat16_faults_are_named(fault):
    change, words = FAULTS[fault]
    with pytest.raises(Interrupted, match=words):
        MismatchMonitor(Mismatch(), "bfloat16").judge(tokens(fault=change))


def compared(sizes, rows_per_context=1):
    """A step of one prompt, whose tokens differ by these sizes, each in a context of its own or in one with its neighbours."""
    index = torch.arange(len(sizes))
    context = index // rows_per_context
    return Tokens(
        difference=sizes, row=index, position=index * 0, token=index, sampled=torch.zeros(len(sizes)), group=context,
        offset=index * 0,
    )  # fmt: skip


def rounding(count, seed, above=0.0):
    """|d| as bfloat16 leaves it, 0.02 nats on average, and this share of tokens off by a nat."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.empty(count).exponential_(50, generator=draw)
    return torch.where(torch.rand(count, generator=draw) < above, 1.0, sizes)


def test_one_token_of_a_small_step_is_chance():
    """SmolLM2-135M in bfloat16, a healthy run: one of 127 tokens is off by 0.957 nats, so that their 99.9th percentile is too."""
    sizes = rounding(127, 0)
    sizes[40] = -0.957
    metrics, warning = MismatchMonitor(Mismatch(), "bfloat16").judge(compared(sizes))
    assert metrics["mismatch/p999"] == pytest.approx(0.957) and warning is None
    sizes[40] = 1.8
    metrics, warning = MismatchMonitor(Mismatch(), "bfloat16").judge(compared(sizes))
    assert metrics["mismatch/kl"] > 0.02 and metrics["mismatch/ess"] < 0.95 and warning is None


def test_small_steps_with_a_rare_large_difference_never_stop():
    monitor = MismatchMonitor(Mismatch(), "bfloat16")
    largest = [monitor.judge(compared(rounding(130, seed, above=5e-4)))[0]["mismatch/max"] for seed in range(400)]
    assert max(largest) == 1.0


@pytest.mark.parametrize(("name", "share"), [("p999", 0.004), ("kl", 0.02), ("ess", 0.03)])
def test_too_many_large_differences_stop_a_run(name, share):
    limits = {"max": 9.0, "mean": 9.0, "p999": 9.0, "kl": 9.0, "ess": 1e-6}
    del limits[name]
    with pytest.raises(Interrupted, match=f"{name} is .* limit"):
        MismatchMonitor(Mismatch(**limits), "bfloat16").judge(compared(rounding(20_000, 0, above=share)))
    assert MismatchMonitor(Mismatch(**limits), "bfloat16").judge(compared(rounding(20_000, 0, above=4e-4)))[1] is None


def test_a_fault_of_every_token_is_seen_in_a_small_step():
    with pytest.raises(Interrupted, match="mean is"):
        MismatchMonitor(Mismatch(), "bfloat16").judge(compared(rounding(30, 0) + 0.15))


def test_ten_tokens_of_one_context_are_one_observation():
    sizes = rounding(400, 0)
    sizes[200:210] = 1.0
    monitor = MismatchMonitor(Mismatch(), "bfloat16")
    assert monitor.judge(compared(sizes, rows_per_context=10))[1] is None
    with pytest.raises(Interrupted, match="p999 is"):
        monitor.judge(compared(sizes))


def test_growth_is_noticed_below_every_other_limit():
    monitor = MismatchMonitor(Mismatch(), "bfloat16")
    with pytest.raises(Interrupted, match="has grown from"):
        for step in range(12):
            scale = torch.ones(ROWS, WIDTH) * 0.002 * (1 + 2 * step)
            monitor.judge(tokens("float32", step, lambda logp, scale=scale: logp + scale))
    assert step > 3


def test_growth_survives_a_restart():
    monitor, again = MismatchMonitor(Mismatch(), "bfloat16"), MismatchMonitor(Mismatch(), "bfloat16")
    for step in range(5):
        monitor.judge(tokens(seed=step))
    again.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
    assert again == monitor


def test_limits_of_the_recipe_replace_those_of_the_dtype():
    with pytest.raises(Interrupted, match=r"limit 0\.01"):
        MismatchMonitor(Mismatch(mean=0.01), "bfloat16").judge(tokens())
    assert MismatchMonitor(Mismatch(), "bfloat16").judge(Tokens.join([tokens(fault=None)]))[1] is None


def test_off_policy_rows_are_not_compared():
    part = tokens()
    columns = {
        "mask": torch.ones(2, 4, dtype=torch.bool),
        "sampled_now": torch.ones(2, 4, dtype=torch.bool),
        "on_policy": torch.tensor([True, False]),
        "logp_old": torch.zeros(2, 4),
        "logp_sampler": torch.ones(2, 4),
        "group": torch.zeros(2, dtype=torch.int64),
    }
    kept = Tokens.of(columns, torch.ones(2, 4), torch.zeros(2, 4, dtype=torch.int64), torch.tensor([4, 9]))
    assert kept.row.tolist() == [4] * 4 and kept.difference.abs().max() == 0 and kept.offset.tolist() == [0, 1, 2, 3]
    assert len(Tokens.join([part, kept]).row) == len(part.row) + 4


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=50))
def test_metrics_keep_their_order(values):
    found = measure(torch.tensor(values))
    assert found["mismatch/mean"] <= found["mismatch/max"] + 1e-9 and found["mismatch/p999"] <= found["mismatch/max"]
    assert found["mismatch/kl"] >= -1e-9 and 0 < found["mismatch/ess"] <= 1 + 1e-9


def two_groups(first, second):
    """Fourteen tokens of a prompt that the model is certain of, and fourteen of another."""
    index, difference = torch.arange(28), torch.cat([torch.full((14,), first), torch.full((14,), second)])
    return Tokens(
        difference=difference, row=index // 7, position=index % 7, token=index, sampled=torch.zeros(28), group=index // 14,
        offset=index % 7,
    )  # fmt: skip


def test_a_prompt_that_is_less_certain_than_another_is_no_fault():
    """SmolLM2-135M in bfloat16, a healthy run: 0.0358 nats a token in one group, 0.0041 in the other."""
    assert MismatchMonitor(Mismatch(), "bfloat16").judge(two_groups(0.0041, 0.0358))[1] is None
    with pytest.raises(Interrupted, match=r"group 1 is off by 0\.1"):
        MismatchMonitor(Mismatch(), "bfloat16").judge(two_groups(0.0041, 0.1))


def test_outlier_needs_enough_contexts_and_company():
    size = torch.cat([torch.full((4,), 1.0), torch.full((40,), 0.01)])
    index = torch.cat([torch.zeros(4), torch.ones(40)]).long()
    assert outlier(size, index, torch.arange(44), 0.03) is None, "four tokens are chance"
    assert outlier(torch.ones(40), torch.ones(40).long(), torch.arange(40), 0.03) is None, "nothing to compare with"
    twice = size.repeat(2), index.repeat(2)
    assert outlier(*twice, torch.arange(88), 0.03) == (0, 1.0, pytest.approx(0.01))
    assert outlier(*twice, torch.arange(44).repeat(2), 0.03) is None, "twice the same four contexts"


def test_one_token_does_not_make_its_row_an_outlier():
    """SmolLM2-135M in bfloat16, a healthy run: a row of nine tokens is off by 0.09 nats on average, for one that is by 0.5."""
    size, index = torch.full((99,), 0.014), torch.arange(99) // 9
    size[:9] = torch.tensor([0.02, 0.05, 0.03, 0.5, 0.02, 0.07, 0.04, 0.06, 0.03])
    assert size[:9].mean() > 6 * size[9:].mean() and size[:9].mean() > 0.07
    assert outlier(size, index, torch.arange(99), 0.07) is None
    size[:9] = torch.tensor([0.09, 0.12, 0.1, 0.11, 0.13, 0.09, 0.1, 0.11, 0.12])
    assert outlier(size, index, torch.arange(99), 0.07)[0] == 0


def first_tokens(groups, rows=4, width=8):
    """Rows whose first token is off by 0.14 nats, as in a healthy bfloat16 run of SmolLM2-135M with two prompts and four rows each."""
    draw = torch.Generator().manual_seed(0)
    count = groups * rows
    mask, sampled = torch.ones(count, width, dtype=torch.bool), torch.zeros(count, width)
    columns = {
        "mask": mask, "sampled_now": mask, "on_policy": mask[:, 0], "logp_old": sampled, "group": torch.arange(count) // rows,
    }  # fmt: skip
    logp = sampled + 0.02
    logp[:, 0] = 0.14
    return Tokens.of(columns, logp, torch.randint(0, 9000, (count, width), generator=draw), torch.arange(count))


def test_tokens_of_one_context_count_once():
    """Two prompts have two first contexts, which rounding can both put off; eight prompts have eight."""
    few, many = first_tokens(2), first_tokens(8)
    assert len(few.contexts().unique()) == 2 + 8 * 7
    assert MismatchMonitor(Mismatch(), "bfloat16").judge(few)[1] is None
    with pytest.raises(Interrupted, match=r"position 0 is off by 0\.14"):
        MismatchMonitor(Mismatch(), "bfloat16").judge(many)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 1), min_size=1, max_size=4)), min_size=1, max_size=8)
)
def test_contexts_are_groups_and_the_tokens_before(rows):
    flat = [(r, o, t, g) for r, (g, row) in enumerate(rows) for o, t in enumerate(row)]
    row, offset, token, group = torch.tensor(flat).T
    zeros = torch.zeros(len(flat))
    found = Tokens(zeros, row, offset, token, zeros, group, offset).contexts().tolist()
    wanted = [(g, *row[:o]) for g, row in rows for o in range(len(row))]
    assert len(set(zip(found, wanted, strict=True))) == len(set(found)) == len(set(wanted))
