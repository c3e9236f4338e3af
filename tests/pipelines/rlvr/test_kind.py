"""What the key of an RLVR stage holds of its methods: those that it uses, whatever else this process has met."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import load_plugins
from pipelines.recipe.check import check_stage
from pipelines.recipe.read import read_recipe

REFERENCE, DEMONSTRATION = "pipelines.rlvr.providers.reference", "pipelines.papers.calibrl"


def modules(tmp_path, *overrides):
    node = read_recipe(toys.recipe(tmp_path), overrides).node("rlvr")
    return node.kind.reads(node).modules


def test_a_provider_joins_the_key_where_a_method_reads_its_column(tmp_path):
    load_plugins()
    plain = modules(tmp_path, "rlvr.divergence=null")
    assert REFERENCE not in plain and DEMONSTRATION not in plain
    assert REFERENCE in modules(tmp_path, "rlvr.divergence=k1")
    assert plain.count("pipelines.rlvr.advantage.grpo") <= 1
    assert DEMONSTRATION in modules(tmp_path, "presets=[calibrl]")


def test_methods_that_are_wrong_are_left_to_the_check(tmp_path):
    node = read_recipe(toys.recipe(tmp_path), ["rlvr.advantage=grpoo"]).node("rlvr")
    assert "pipelines.rlvr.objective.clip" in node.kind.reads(node).modules
    with pytest.raises(RecipeError, match=r"no method called 'grpoo'.*grpo"):
        check_stage(node)
