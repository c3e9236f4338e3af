"""What the classes of methods say about models, read from their files."""

from __future__ import annotations

from pipelines.contract import catalogue
from pipelines.recipe.slots import SLOTS
from pipelines.rlvr import reward_models


def test_what_is_read_from_the_file_is_what_the_class_says():
    some = {"model_paths": 0, "reward_models": 0, "language_models": 0}
    for slot in [f"rlvr.{slot}" for slot in (*SLOTS, "providers")]:
        for name in catalogue.names(slot):
            said = {attribute: getattr(catalogue.load(slot, name), attribute, ()) for attribute in some}
            assert reward_models.scoring_models(slot, name) == said["model_paths"], (slot, name)
            assert [s for s, _ in reward_models.declared(slot, name)] == [
                *said["reward_models"],
                *said["language_models"],
            ], (slot, name)
            some = {attribute: count + bool(said[attribute]) for attribute, count in some.items()}
    assert all(some.values()), "each is used somewhere"
