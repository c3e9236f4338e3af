"""The hooks: every part has them all, and where nobody overrides them nothing happens."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import toys
from method_toys import spec

from pipelines.contract import catalogue
from pipelines.contract.catalogue import bind, load, names
from pipelines.contract.method import BASES, FunctionMethod, Method
from pipelines.contract.sampling import Sampling
from pipelines.recipe.slots import SLOTS

ALL = [(slot, name) for slot in SLOTS for name in names(f"rlvr.{slot}")]
HOOKS = (
    "connect",
    "setup",
    "sampling",
    "on_rollouts",
    "on_batch",
    "metrics",
    "column_options",
    "state_dict",
    "load_state_dict",
)


@pytest.mark.parametrize(("slot", "name"), ALL)
def test_every_part_has_every_hook(slot, name):
    part = bind(f"rlvr.{slot}", spec(slot, name)).fn
    assert isinstance(part, BASES.get(f"rlvr.{slot}", Method))
    assert all(callable(getattr(part, hook)) for hook in HOOKS)
    for hook in HOOKS:
        ours, base = inspect.signature(getattr(type(part), hook)), inspect.signature(getattr(Method, hook))
        assert list(ours.parameters) == list(base.parameters), f"{hook} is called by position"


def test_what_is_not_overridden_does_nothing():
    part = FunctionMethod(lambda reward, *, factor: reward * factor, {"factor": 3})
    settings, rows = Sampling(), []
    assert part(reward=2) == 6
    assert part.sampling(settings) is settings and part.on_rollouts(rows) is rows
    assert part.setup(toys.setup_context([1])) is None and part.on_batch({}) is None
    assert part.state_dict() == {} and part.column_options() == {}
    part.load_state_dict({})


@pytest.mark.parametrize("slot", sorted(BASES))
def test_a_part_without_the_base_of_its_slot_is_refused(slot, monkeypatch):
    """The loop calls what the base promises; a file that promises less fails when it is loaded."""
    name = names(slot)[0]
    whole = load(slot, name)
    load.cache_clear()

    @catalogue.method(paper="folklore", title="a stranger", checked="closed form")
    class Stranger(Method):
        pass

    attribute = catalogue.origin(slot, name).attribute
    monkeypatch.setattr(sys.modules[whole.__module__], attribute, Stranger)
    with pytest.raises(TypeError, match=rf"{attribute} must be a class that inherits from {BASES[slot].__name__}"):
        load(slot, name)
    load.cache_clear()


@pytest.mark.parametrize("path", ["pipelines/rlvr", "pipelines/engine/policy.py", "pipelines/recipe"])
def test_nobody_probes_for_hooks(path):
    """No hasattr and no getattr with a hook's name, in whatever form."""
    found = subprocess.run(
        ["grep", "-rnE", rf"(has|get)attr\([^)]*({'|'.join(HOOKS)}|system_prompt|top_p_mass)", path],
        cwd=toys.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout == ""
    loop = [toys.ROOT / f"pipelines/rlvr/{name}.py" for name in ("train", "learner", "passes", "algorithm", "pack")]
    assert not any("hasattr(" in file.read_text() for file in loop)
