"""Parts that are asked before the updates of the step before them are made."""

from __future__ import annotations

import dataclasses
import json

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.method import Reward
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr

SHORT = {"kind": "verifier", "name": "short", "verifier": "regex", "answer": ".{0,6}"}


def composite(*terms):
    return bind("rlvr.reward", Rlvr(reward=list(terms)).reward).fn


class Learns(Reward):
    """Has been told of an update."""

    def score(self, rows, problems):
        raise AssertionError

    def on_batch(self, columns):
        self.told = True


def test_it_uses_the_hooks_of_its_terms():
    """What is sampled ahead of the updates may only remember updates where a term does, or a weight moves with them."""
    moving = {"start": 1.0, "end": 0.0, "steps": 4}
    still, ramp = composite("verifier", SHORT), composite({"kind": "verifier", "weight": moving})
    assert not any(still.uses(hook) for hook in ("setup", "sampling", "on_rollouts", "on_batch"))
    assert ramp.uses("on_batch") and not ramp.uses("on_rollouts")
    for reward in (still, ramp):
        reward.on_batch({})
    assert (still.step, ramp.step) == (0, 1)
    part = bind("rlvr.reward", "verifier")
    learning = dataclasses.replace(still.terms[1], reward=dataclasses.replace(part, fn=Learns()))
    still.terms.append(learning)
    assert still.uses("on_batch") and not still.uses("sampling")


@pytest.mark.parametrize(("weight", "refused"), [(0.5, False), ({"start": 1.0, "end": 0.0, "steps": 4}, True)])
def test_rewards_sampled_ahead_may_have_terms_whose_weights_stand_still(tmp_path, weight, refused):
    more = [
        "rlvr.sampler.serve=true", "rlvr.staleness=1", "rlvr.old_logp=trainer", "rlvr.credit=[truncated_is]",
        f"rlvr.reward={json.dumps(['verifier', {**SHORT, 'weight': weight}])}",
    ]  # fmt: skip
    read = read_recipe(toys.recipe(tmp_path), more)
    if not refused:
        return check(read)
    with pytest.raises(RecipeError, match=r"rlvr\.reward: composite takes what it learns from those updates"):
        check(read)
