"""The mutations themselves, and a fixed sample of the mutants of all method files."""

from __future__ import annotations

import ast
import importlib

import toys
from mutation.operators import mutants
from mutation.swap import planted

SOURCE = '''
def f(x, mask, *, n=3):
    """Not 1 - 2."""
    if n < 0:
        raise ValueError(f"{n - 1}")
    y = -x[0] + (x - n) * mask
    return y.detach().clamp(0, n), x.std(ddof=1), min(x) if n > 1e-8 or not n else x / 2
'''


def test_the_mutations_of_a_function(tmp_path):
    (tmp_path / "f.py").write_text(SOURCE)
    changes = {(m.operator, m.change.partition(": ")[2]) for m in mutants(tmp_path / "f.py")}
    for wanted in [
        ("sign", "-x[0] → x[0]"),
        ("operands", "x - n → n - x"),
        ("operands", "x / 2 → 2 / x"),
        ("mask", "(x - n) * mask → x - n"),
        ("detach", "y.detach() → y"),
        ("bounds", "y.detach().clamp(0, n) → y.detach().clamp(n, 0)"),
        ("ddof", "x.std(ddof=1) → x.std(ddof=0)"),
        ("min/max", "min(x) → max(x)"),
        ("logic", "n > 1e-08 or not n → n > 1e-08 and (not n)"),
        ("compare", "n < 0 → n <= 0"),
        ("plus one", "x / 2 → x / 3"),
    ]:
        assert wanted in changes, wanted
    assert not any("n - 1" in c or "3" in c.partition(" →")[0] or "x[1]" in c for _, c in changes)
    assert ("compare", "n > 1e-08 → n >= 1e-08") not in changes, "nothing equals a tolerance"


def test_a_mutant_is_in_force_for_whoever_imported_the_function_before():
    from pipelines.rlvr.reward.arena_tournament import bracket

    module = importlib.import_module("pipelines.rlvr.reward.arena_tournament")
    path = toys.ROOT / "pipelines/rlvr/reward/arena_tournament.py"
    start = next(m for m in mutants(path) if m.scope == "bracket" and isinstance(m.tree, ast.Module))
    before = bracket.__code__
    with planted(module, start):
        assert bracket.__code__ is not before
    assert bracket.__code__ is before and bracket(4) == [0, 3, 1, 2]
