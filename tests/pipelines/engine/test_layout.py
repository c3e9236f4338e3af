"""Layouts change how much is computed, never what comes out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.sampling import Sampling
from pipelines.engine.layout import (
    best_layouts,
    narrow_bins,
    packed_layouts,
    padded_layouts,
    prefix_layouts,
    row_ends,
    tree_layouts,
)
from pipelines.engine.policy import GPU_COSTS, Policy


def rows(draw: torch.Generator, groups: int, size: int, gaps: bool):
    """Ragged rows with common prompts; with gaps, some later tokens are not scored (an environment's)."""
    made = []
    for _ in range(groups):
        prompt = torch.randint(4, 90, (int(torch.randint(2, 9, (1,), generator=draw)),), generator=draw).tolist()
        for _ in range(size):
            answer = torch.randint(4, 90, (int(torch.randint(1, 7, (1,), generator=draw)),), generator=draw).tolist()
            made.append((prompt, answer))
    width = max(len(p) + len(a) for p, a in made)
    tokens, mask = torch.zeros(len(made), width, dtype=torch.int64), torch.zeros(len(made), width, dtype=torch.bool)
    for i, (prompt, answer) in enumerate(made):
        tokens[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        mask[i, len(prompt) : len(prompt) + len(answer)] = True
        if gaps and len(answer) > 3:
            mask[i, len(prompt) + 1] = False
    return tokens, mask


def gradient(model, tokens, mask, layouts, weight):
    policy = Policy(model, Sampling(temperature=0.8))
    model.zero_grad()
    values = torch.zeros(mask.numel())
    for layout in layouts:
        made, _ = policy.score(layout, tokens.flatten()[layout.target])
        (made * weight.flatten()[layout.target]).sum().backward()
        values[layout.target] = made.detach()
    return values, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("where", ["last", "mlp", (1, 0)])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_same_hidden_states(family, where):
    """For suffixes of shared prefixes too: a prefix is a pass of its own before the rows'."""
    tokens, mask = rows(torch.Generator().manual_seed(1), 3, 4, True)
    policy = Policy(toys.model(family), Sampling())
    every = torch.arange(len(tokens))
    found = []
    for layouts in (padded_layouts, tree_layouts, prefix_layouts):
        values = torch.zeros(mask.numel(), 2, 64)
        for layout in layouts(tokens, mask, every, 200):
            states = policy.hidden(layout, where)
            values[layout.target] = states if states.ndim == 3 else states[:, None].expand(-1, 2, -1)
        found.append(values)
    assert any(layout.prefix is not None for layout in prefix_layouts(tokens, mask, every, 200))
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[2], found[0], atol=1e-4, rtol=1e-4)
    assert (found[0][:, 0] == found[0][:, 1]).all() == (where in ("last", "mlp"))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gpt2"])
@pytest.mark.parametrize("gaps", [False, True])
def test_same_values_and_gradients(family, gaps):
    draw = torch.Generator().manual_seed(1)
    tokens, mask = rows(draw, 3, 4, gaps)
    weight = torch.randn(mask.shape, generator=draw)
    model = toys.model(family)
    every = torch.arange(len(tokens))
    oracle = gradient(
        model, tokens, mask, [one for r in every for one in padded_layouts(tokens, mask, r[None], 10_000)], weight
    )
    for budget in (1, 40, 10_000):
        for make in (padded_layouts, tree_layouts, prefix_layouts):
            got = gradient(model, tokens, mask, list(make(tokens, mask, every, budget)), weight)
            for a, b in zip(oracle, got, strict=True):
                torch.testing.assert_close(a, b, atol=3e-5, rtol=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 5), st.integers(1, 200))
def test_every_scored_token_once(seed, groups, size, budget):
    tokens, mask = rows(torch.Generator().manual_seed(seed), groups, size, gaps=True)
    for make in (padded_layouts, tree_layouts, prefix_layouts):
        targets = torch.cat([one.target for one in make(tokens, mask, torch.arange(len(tokens)), budget)])
        assert sorted(targets.tolist()) == mask.flatten().nonzero().squeeze(1).tolist()


def test_short_answers_to_long_prompts_are_shared():
    tokens, mask = torch.full((8, 40), 5), torch.zeros(8, 40, dtype=torch.bool)
    mask[:, 36:] = True
    layouts = best_layouts(tokens, mask, torch.arange(8), 10_000, allow_trees=True)
    assert sum(one.size for one in layouts) == 39, "eight equal rows are one path, whose last token nobody reads"
    assert sum(one.size for one in best_layouts(tokens, mask, torch.arange(8), 10_000, allow_trees=False)) == 8 * 39


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 8), st.integers(1, 200))
def test_a_token_sees_exactly_what_precedes_it(seed, groups, size, budget):
    tokens, mask = rows(torch.Generator().manual_seed(seed), groups, size, gaps=True)
    tokens = tokens % 3 + 1  # so that answers begin alike
    for layout in tree_layouts(tokens, mask, torch.arange(len(tokens)), budget):
        width = layout.ids.shape[1]
        for source, target in zip(layout.source.tolist(), layout.target.tolist(), strict=True):
            row, at = divmod(source, width)
            seen = layout.attention[row, 0, at].nonzero().squeeze(1)
            assert layout.positions[row, seen].tolist() == list(range(len(seen)))
            theirs, end = divmod(target, tokens.shape[1])
            assert layout.ids[row, seen].tolist() == tokens[theirs, :end].tolist()


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 8), st.integers(1, 200))
def test_a_pass_keeps_to_the_budget_where_single_rows_allow(seed, groups, size, budget):
    tokens, mask = rows(torch.Generator().manual_seed(seed), groups, size, gaps=True)
    longest = int(row_ends(mask).max()) - 1
    for make in (padded_layouts, tree_layouts, prefix_layouts):
        for layout in make(tokens, mask, torch.arange(len(tokens)), budget):
            assert layout.size <= max(budget, longest)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 8), st.integers(1, 200))
def test_few_passes_score_the_same_tokens_within_the_budget(seed, groups, size, budget):
    tokens, mask = rows(torch.Generator().manual_seed(seed), groups, size, gaps=True)
    tokens, every = tokens % 3 + 1, torch.arange(len(tokens))
    few, more = (
        best_layouts(tokens, mask, every, budget, allow_trees=True, few_passes=value) for value in (True, False)
    )
    targets = [torch.cat([one.target for one in layouts]).sort().values.tolist() for layouts in (few, more)]
    assert targets[0] == targets[1] and len(few) <= len(more)
    assert all(layout.size <= max(budget, int(row_ends(mask).max()) - 1) for layout in few)


def test_a_narrow_tree_is_padded_where_a_pass_is_dear():
    """Seven pairs of equal rows of 100 tokens that are read, and one of 10."""
    tokens = torch.arange(16 * 101).view(16, 101) // 202 * 101 + torch.arange(101)
    mask = torch.zeros(16, 101, dtype=torch.bool)
    mask[:14, 100] = mask[14:, 10] = True
    sizes = {
        few: [one.size for one in best_layouts(tokens, mask, torch.arange(16), 8192, allow_trees=True, few_passes=few)]
        for few in (False, True)
    }
    assert sizes == {False: [700, 10], True: [800]}


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_a_tree_has_each_prefix_once(seed, size):
    tokens, mask = rows(torch.Generator().manual_seed(seed), 1, size, gaps=False)
    tokens = tokens % 3 + 1
    (layout,) = tree_layouts(tokens, mask, torch.arange(len(tokens)), 10_000)
    ends = row_ends(mask).tolist()
    assert layout.size == len({tuple(t[:n].tolist()) for t, e in zip(tokens, ends, strict=True) for n in range(1, e)})


def test_samples_that_begin_alike_share_their_beginning():
    tokens = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 4], [5, 6, 7, 3, 4], [5, 6, 2, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1]] * 3 + [[0, 0, 1, 0, 0]]).bool()
    (layout,) = tree_layouts(tokens, mask, torch.arange(4), 10_000)
    assert sorted(zip(layout.positions[0].tolist(), layout.ids[0].tolist(), strict=True)) == [
        (0, 5), (1, 6), (2, 7), (3, 3), (3, 8),
    ]  # fmt: skip


def test_long_answers_share_their_prompt_without_a_tree():
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 90, (16, 384), generator=draw)
    tokens[:8, :128], tokens[8:, :128] = tokens[0, :128].clone(), tokens[8, :128].clone()
    mask = (torch.arange(384) >= 128).expand(16, -1)
    every = torch.arange(16)
    one, two = (
        best_layouts(tokens, mask, every, 100_000, allow_trees=True, allow_prefixes=allowed)
        for allowed in (False, True)
    )
    assert sum(layout.size for layout in one) == 16 * 383
    assert [layout.size for layout in two] == [2 * 127 + 16 * 256] and two[0].used == two[0].size


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9)], ids=["plain", "cut"])
@pytest.mark.parametrize("entropy", ["value", "gradient"])
def test_passes_stay_on_their_device(family, sampling, entropy):
    """A pass on a device without values: a tensor made elsewhere is an error there, as it would be on a GPU."""
    tokens, mask = rows(torch.Generator().manual_seed(1), 3, 4, gaps=False)
    model, away = toys.model(family), torch.device("meta")
    policy = Policy(model, sampling)
    model.to(away)
    policy.device = away
    for make in (
        tree_layouts,
        prefix_layouts,
    ):  # transformers reads values of plain rows, to see whether they are packed
        for layout in make(tokens, mask, torch.arange(len(tokens)), 10_000):
            values, spread = policy.score(layout, tokens.flatten()[layout.target], entropy=entropy)
            (values.sum() + spread.sum()).backward()
            assert values.device == spread.device == away
            policy.hidden(layout, "last")
    assert all(p.grad.device == away for p in model.parameters())


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_narrow_bins_hold_everything_once_and_cost_at_most_four_times_separate_rows(sizes):
    bins = narrow_bins(sizes)
    assert sorted(i for members in bins for i in members) == list(range(len(sizes)))
    widths = [sum(sizes[i] for i in members) for members in bins]
    assert max(widths) == max(sizes)
    assert all(width < 2 * max(sizes[i] for i in members) for width, members in zip(widths, bins, strict=True))


def test_packed_documents_do_not_see_each_other():
    draw = torch.Generator().manual_seed(3)
    lengths = [7, 4, 9, 2, 1, 5]
    documents = [torch.randint(4, 90, (n,), generator=draw).numpy() for n in lengths]
    mask = [np.arange(n) >= max(1, n // 2) for n in lengths]
    model = toys.model()
    policy = Policy(model, Sampling())
    every = torch.cat([torch.from_numpy(document) for document in documents])
    values = torch.zeros(len(every))
    for layout in packed_layouts(documents, mask, 24):
        values[layout.target] = policy.score(layout, every[layout.target])[0].detach()
        assert layout.size <= 24
    for document, scored, value in zip(documents, mask, values.split(lengths), strict=True):
        if len(document) > 1:
            alone = policy.logp(torch.from_numpy(document)[None], torch.from_numpy(scored)[None]).logp[0]
            torch.testing.assert_close(value, alone.detach(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("answer", [2, 200])
def test_layouts_with_masks_must_save_what_their_tokens_cost(answer):
    """Eight answers to a prompt of 100 tokens: with few tokens each they stay together, with many they do where that costs nothing."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.cat([torch.arange(3, 103).expand(8, 100), torch.randint(3, 300, (8, answer), generator=draw)], 1)
    mask = torch.arange(100 + answer).expand(8, -1) >= 100
    every = torch.arange(8)

    def masked(**costs: float) -> bool:
        layouts = best_layouts(tokens, mask, every, 4096, allow_trees=True, allow_prefixes=True, **costs)
        return any(layout.attention is not None for layout in layouts)

    assert masked()
    assert masked(**GPU_COSTS) == (answer == 2)
