"""The catalogue as a frame is that of `whetstone methods`."""

from __future__ import annotations

import pytest

from flows.cli import catalogue
from pipelines.recipe.read import preset_names
from whetstone_rlvr import UserError, methods


@pytest.mark.slow
def test_it_is_that_of_the_command():
    frame = methods()
    listed = catalogue.entries()
    assert [*zip(frame.slot, frame.name, strict=True)][: len(listed)] == [(e["slot"], e["name"]) for e in listed]
    assert frame.name[len(listed) :].tolist() == preset_names()
    grpo = methods("advantage").set_index("name").loc["grpo"]
    assert (grpo["paper"], grpo["reads"][0], "scale" in grpo["settings"]) == ("2402.03300", "reward", True)


@pytest.mark.slow
def test_one_slot():
    assert {*methods("objective").slot} == {"objective"}
    assert methods("presets").name.tolist() == preset_names() and methods("presets").title.notna().all()
    with pytest.raises(UserError, match="Did you mean 'advantage'"):
        methods("advantge")
