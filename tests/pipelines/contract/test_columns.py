"""The table of columns and what is derived from it: packing, checks, examples."""

from __future__ import annotations

import math
import textwrap

import pytest
import torch
import toys

from pipelines.base import plugins
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import load, names, needs
from pipelines.contract.columns import COLUMNS, HOOK_PHASE, SLOT_PHASE, Phase, phase_of
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.laws import example_columns as examples
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.slots import SLOTS
from pipelines.rlvr.pack import DTYPES, pack

SHAPES = {"B": 1, "B T": 2, "B S": 2, "B K": 2, "B T V": 3, "B C": 2}
EXAMPLE = examples.columns(
    *(getattr(toys.batch(), name) for name in ("mask", "group", "reward", "turn")), phase=Phase.LOSS
)


def trajectory(count: int, **more) -> Trajectory:
    return Trajectory(
        uid="0" * 32, group=0, tokens=[1, *range(3, 3 + count)], role=[0] + [int(Role.POLICY)] * count, logp_old=[0.0] * (count + 1),
        max_tokens=8, stop=Stop.END, version=0, score=1.0, correct=True, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_an_example_is_what_the_table_says(name):
    column, value = COLUMNS[name], EXAMPLE[name]
    if not column.shape:
        assert isinstance(value, int) and column.dtype == "int"
        return
    assert value.ndim == SHAPES[column.shape] and value.dtype == DTYPES[column.dtype]
    if column.shape == "B T":
        outside = value[~EXAMPLE["mask"]]
        assert outside.isnan().all() if math.isnan(column.fill) else (outside == column.fill).all()


@pytest.mark.parametrize("name", [n for n, c in COLUMNS.items() if c.field])
def test_packing_pads_with_the_table_s_fill(name):
    column = COLUMNS[name]
    if column.field in ("tokens", "logp_old"):
        rows = [trajectory(3), trajectory(1)]
    else:
        value = 1 if column.dtype == "int64" else 0.5
        size = (lambda n: 2 if n == 3 else 1) if column.shape == "B S" else (lambda n: n + 1)
        rows = [trajectory(n, **{column.field: [value] * size(n)} | ({"turn_state": [1] * size(n)} if column.shape == "B S" else {}))
                for n in (3, 1)]  # fmt: skip
    packed = pack(rows, step=0, total_steps=2)[name]
    assert packed.dtype == DTYPES[column.dtype]
    last = float(packed[1, -1])
    assert math.isnan(last) if math.isnan(column.fill) else last == column.fill
    assert (torch.tensor(float(packed[0, -1])) != last).item() or column.field == "logp_old"


def test_what_no_trajectory_has_makes_no_column():
    packed = pack([trajectory(2)], step=1, total_steps=2)
    assert {n for n, c in COLUMNS.items() if c.part and c.field}.isdisjoint(packed)
    assert all(COLUMNS[name].phase <= Phase.FILTER for name in packed)
    assert {n for n, c in COLUMNS.items() if c.phase == Phase.FILTER and not c.part} - set(packed) == {"entropy_old"}


def test_every_slot_has_a_phase():
    assert set(SLOT_PHASE) == set(SLOTS)
    assert [phase_of(slot) for slot in SLOTS if slot != "loss_aggregation"] == sorted(
        phase_of(slot) for slot in SLOTS if slot != "loss_aggregation"
    )


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s in SLOTS for n in names(f"rlvr.{s}")])
def test_no_method_reads_what_comes_later(slot, name):
    fn = load(f"rlvr.{slot}", name)
    for column in needs(fn):
        called = max(phase_of(slot), HOOK_PHASE if column in fn.card.reads else Phase.ROLLOUT)
        assert COLUMNS[column].phase <= called, column


@pytest.mark.parametrize(
    ("column", "words"), [("advantage", "phase credit"), ("value", "critic"), ("logp", "phase loss")]
)
def test_a_filter_that_reads_ahead_is_refused(tmp_path, column, words):
    """It used to pass the check and to fail when it ran."""
    module = tmp_path / f"eager_{column}.py"
    module.write_text(
        textwrap.dedent(f'''
        from pipelines.contract.catalogue import method

        @method(paper="folklore", title="reads ahead", checked="closed form")
        def eager({column}):
            """Whatever."""
            return {column}

        PARTS = {{"rlvr.filter": {{"eager_{column}": eager}}}}
        ''')
    )
    changes = [f"plugins=[{module}]", f"rlvr.filter=eager_{column}", "rlvr.providers=[critic]"]
    with pytest.raises(RecipeError, match=rf"rlvr\.filter: eager_{column} reads {column}, which comes later.*{words}"):
        check(read_recipe(toys.recipe(tmp_path), changes))
    plugins._named.clear()
    plugins.origins.cache_clear()
    load.cache_clear()
