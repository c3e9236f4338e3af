"""What a recipe's reader says of a field with the wrong shape."""

from __future__ import annotations

import re

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.recipe.read import read_recipe


@pytest.mark.parametrize(
    ("change", "hint"), [("sft.optimizer=true", "Write {} for its"), ("curate.decontaminate=false", "Write null to")]
)
def test_a_switch_in_place_of_a_section_is_told_what_to_write(change, hint):
    with pytest.raises(RecipeError, match=re.escape(hint)):
        read_recipe(toys.ROOT / "recipes" / "quickstart.yaml", [change])


@pytest.mark.parametrize(
    ("field", "hint"), [("group_siz", "Did you mean 'group_size'?"), ("epochs", "Known: divergence, group_size")]
)
def test_a_field_of_a_section_that_has_a_name_is_told_its_neighbours(field, hint):
    with pytest.raises(RecipeError, match=re.escape(f"rlvr.by_source.sums.{field}: no such field. {hint}")):
        read_recipe(toys.ROOT / "recipes" / "quickstart.yaml", [f"rlvr.by_source={{sums: {{{field}: 4}}}}"])


@pytest.mark.parametrize("number", ["4255418e76", "12345678", "true"])
def test_a_text_that_yaml_reads_as_a_number_is_told_to_be_quoted(number):
    """Such as the beginning of a run's id."""
    with pytest.raises(RecipeError, match=r"gate\.against: .* put it in quotes"):
        read_recipe(
            toys.ROOT / "recipes" / "quickstart.yaml", [f"gate={{against: {number}, not_worse: {{palindromes: 2}}}}"]
        )
    quoted = f"gate={{against: '{number}', not_worse: {{palindromes: 2}}}}"
    assert read_recipe(toys.ROOT / "recipes" / "quickstart.yaml", [quoted]).gate.against == number
