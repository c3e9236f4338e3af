"""One budget between SFT and RLVR: what each share buys, and what cannot be split."""

from __future__ import annotations

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import UserError
from pipelines.recipe.read import read_recipe
from tasks.sweep import budget_split as sweep_split
from tasks.sweep import plan as sweep


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(toys.recipe(tmp_path_factory.mktemp("split")))


def test_each_share_buys_sft_steps_and_completion_tokens(path):
    """10,240 tokens at 512 a step: a quarter is 5 steps and leaves 7,680, three quarters are 15 and leave 2,560."""
    read = sweep.read(path, budget="10240tokens", split="0.25,0.75", seeds="2")
    assert read.shares == {"25 % SFT": 0.25, "75 % SFT": 0.75} and read.start() is None
    recipes = {(c.variant, c.seed): c.recipe(path) for c in read.cells()}
    assert len(recipes) == 4
    bought = {(name, r.sft.steps, r.rlvr.budget.tokens) for (name, _), r in recipes.items()}
    assert bought == {("25 % SFT", 5, 7680), ("75 % SFT", 15, 2560)}


def test_dear_demonstrations_are_fewer(path):
    read = sweep.read(path, budget="10240tokens", split="0.5", sft_price=5.0)
    (cell,) = read.cells()
    assert cell.recipe(path).sft.steps == 2 and cell.recipe(path).rlvr.budget.tokens == 5120


def test_it_is_an_axis_beside_others(path):
    read = sweep.read(path, ["rlvr.advantage=grpo,rloo"], budget="1e5tokens", split="0.2,0.4")
    assert list(read.variants) == [f"rlvr.advantage {a} · {s} % SFT" for s in (20, 40) for a in ("grpo", "rloo")]


@given(st.floats(0.01, 0.99), st.integers(100_000, 10**9), st.floats(0.1, 10))
def test_what_is_spent_is_the_budget_within_a_step(of_sft, budget, price):
    base = BASE
    (share,) = sweep_split.read(f"{of_sft}", f"{budget}tokens", price, base, "rlvr")
    steps, tokens = (int(text.partition("=")[2]) for text in share.overrides)
    per_step = base.sft.tokens_per_step * price
    assert abs(steps * per_step + tokens - budget) <= per_step / 2 + 1


BASE = read_recipe(toys.ROOT / "recipes" / "quickstart.yaml", ["sft.tokens_per_step=64"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "0.5"}, "Add --budget 1e6tokens"),
        ({"split": "0.5", "budget": "30m"}, "a budget of tokens"),
        ({"split": "0.5", "budget": "1.2.3tokens"}, "Add --budget 1e6tokens"),
        ({"split": "0.5", "budget": "1e999tokens"}, "Add --budget 1e6tokens"),
        ({"split": "0,0.5", "budget": "1e6tokens"}, "between 0 and 1"),
        ({"split": "half", "budget": "1e6tokens"}, "between 0 and 1"),
        ({"split": "0.5,0.5", "budget": "1e6tokens"}, "each once"),
        ({"split": "0.001", "budget": "1e4tokens"}, "less than half an SFT step"),
        ({"split": "0.5", "budget": "1e6tokens", "sft_price": 0.0}, "a positive number"),
        ({"sft_price": 2.0}, "Add --split"),
    ],
)
def test_what_cannot_be_split_is_refused(path, arguments, message):
    with pytest.raises(UserError, match=message):
        sweep.read(path, **arguments)


def test_a_recipe_without_sft_has_nothing_to_split(tmp_path):
    path = str(toys.recipe(tmp_path, sft=None, evaluate={"checkpoints": ["rlvr"]}))
    with pytest.raises(UserError, match="needs an SFT stage"):
        sweep.read(path, budget="1e6tokens", split="0.5")
