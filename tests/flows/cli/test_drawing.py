"""What `whetstone plan` prints."""

from __future__ import annotations

import pytest
import toys

from flows.cli import drawing
from pipelines.recipe.read import read_recipe
from tasks.planning import Planned

KEY = "0123456789abcdef"


@pytest.mark.parametrize("recipe", ["quickstart.yaml", "iterative_dpo.yaml"])
def test_a_plan_says_what_its_columns_are(recipe):
    """A row of sixteen characters in the middle of each line said nothing."""
    read = read_recipe(toys.ROOT / "recipes" / recipe)
    first, *others = read.stage_names()
    planned = [Planned(first, "reuse", "nothing it reads has changed", KEY)]
    planned += [Planned(name, "run", f"{first} will run") for name in others]
    headings, *lines, empty, meaning = drawing.plan(read, planned).splitlines()
    assert headings.split() == ["stage", "action", "key", "why"] and not empty
    columns = [headings.index(name) for name in ("action", "key", "why")]
    for line, entry in zip(lines, planned, strict=True):
        ends = [*columns[1:], None]
        action, key, why = (line[at:end].strip() for at, end in zip(columns, ends, strict=True))
        assert (action, key, why) == (entry.action, entry.key or "(depends on its inputs)", entry.why)
    assert meaning.startswith("key: a digest of all that can change the stage's result")
