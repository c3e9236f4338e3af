"""How the passes of a stage on fixed data are divided between processes."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.fixed_data import FixedDataLoop, epoch_order
from pipelines.engine.parallel import World
from pipelines.engine.policy import Policy
from pipelines.preference.examples import Answers, Examples

ITEMS = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=2), min_size=1, max_size=9
)
"""Prompt and answer lengths of each item's rows."""


def loop(world, budget, masks, checkpoints=False):
    made = FixedDataLoop.__new__(FixedDataLoop)
    made.world = world
    made.policy = Policy.__new__(Policy)
    made.policy.takes_masks = made.policy.takes_prefixes = masks
    made.policy.device = torch.device("cpu")
    made.settings = SimpleNamespace(micro_batch_tokens=budget, gradient_checkpointing=checkpoints)
    return made


def examples_of(items):
    examples = Examples()
    for rows in items:
        numbers = [
            examples.add([7] * prompt + [number + 1] * answer, prompt) for number, (prompt, answer) in enumerate(rows)
        ]
        examples.items.append(tuple(numbers))
    return examples


@given(ITEMS, st.integers(1, 4), st.integers(1, 120), st.booleans(), st.data())
def test_every_item_counts_once_in_as_many_passes_on_each_process(items, size, budget, masks, data):
    """Several processes have passes of one layout each: one more forward than another's, and all would wait for ever."""
    examples = examples_of(items)
    order = data.draw(st.permutations(range(len(items))))
    cut = data.draw(st.integers(0, len(items)))
    parts = [part for part in (order[:cut], order[cut:]) if part]

    def rows_of(part):
        return Answers.of(examples, [row for item in part for row in examples.items[item]], 0)

    shares = [list(loop(World(rank, size), budget, masks).passes(parts, rows_of)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    counted = [item for share in shares for one, counts in share if counts for item in one.items]
    assert sorted(counted) == list(range(len(items)))
    for one, _ in (entry for share in shares for entry in share):
        assert size == 1 or (len(one.layouts) == 1 and one.layouts[0].prefix is None)
        scored = torch.cat([layout.target for layout in one.layouts]).sort().values
        assert torch.equal(scored, one.rows.mask.flatten().nonzero().squeeze(1)), "each token of the part once"


def test_a_single_part_is_divided_where_there_are_more_processes():
    examples = examples_of([[(2, 3)]] * 5)
    shares = [
        list(loop(World(rank, 3), 1000, True).passes([range(5)], lambda part: Answers.of(examples, part, 0)))
        for rank in range(3)
    ]
    assert [[one.items for one, _ in share] for share in shares] == [[[0, 1]], [[2]], [[3, 4]]]


def test_recomputed_blocks_are_not_run_twice_for_a_prefix():
    """A block that is recomputed keeps no keys and values of the prefix for the pass that follows it."""
    examples = examples_of([[(400, 300), (400, 300)]])
    rows = Answers.of(examples, examples.items[0], 0)
    assert loop(World(), 4000, True).layouts(rows)[0].prefix is not None
    assert loop(World(), 4000, True, checkpoints=True).layouts(rows)[0].prefix is None
    assert loop(World(0, 2), 4000, True).layouts(rows)[0].prefix is None


def test_every_pass_over_the_data_has_an_order_of_its_own():
    assert sorted(epoch_order(9, 1, 0)) == list(range(9)) and epoch_order(9, 1, 0) != epoch_order(9, 1, 1)
