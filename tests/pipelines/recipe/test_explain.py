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
