"""GKD's share of fixed data: who gets the record's solution."""

from __future__ import annotations

import pytest
import toys
import yaml
from scripted import context, request, show

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role
from pipelines.recipe.read import PRESETS


def groups(share, order=range(40)):
    """Group → (number of rows, whether they are teacher-forced, their text)."""
    part = bind("rlvr.rollout", {"kind": "fixed_share", "share": share}).fn
    asked = [request(f"p{number}", 2, group=number, solution="so") for number in order]
    out = {}
    for row in part.run(asked, context(lambda prefix, number: "hm")):
        text = show([t for t, role in zip(row.tokens, row.role, strict=True) if role != Role.PROMPT])
        out.setdefault(row.group, []).append((Role.TEACHER_FORCED in row.role, text))
    return out


def test_a_share_of_the_problems_gets_its_solution_and_the_others_rollouts():
    drawn = groups(0.5)
    fixed = [group for group, rows in drawn.items() if rows == [(True, "so")]]
    assert 8 < len(fixed) < 32 and all(drawn[g] == [(False, "hm")] * 2 for g in drawn if g not in fixed)
    assert list(drawn) == list(range(40))


def test_the_draw_is_the_group_s_own():
    assert groups(0.5, reversed(range(40))) == groups(0.5)


@pytest.mark.parametrize(("share", "rows"), [(0.0, [(False, "hm")] * 2), (1.0, [(True, "so")])])
def test_the_ends_are_one_or_the_other(share, rows):
    assert all(own == rows for own in groups(share).values())


def test_it_trains_on_both(tmp_path, start):
    provider = f"rlvr.providers=[{{kind: teacher_top, path: {start}/sft/out/base}}]"
    changes = ("presets=[gkd]", provider, "rlvr.rollout={kind: fixed_share, share: 0.5}", "rlvr.steps=2")
    assert toys.trainer(tmp_path, start, toys.recipe(tmp_path), *changes).run()["steps"] == 2


@pytest.mark.parametrize("student", ["gkd", "minillm"])
def test_students_of_the_recipe_are_their_presets_and_otherwise_the_one_without_a_teacher(student):
    """They are compared with it at equal steps, so nothing else may differ; MiniLLM's four epochs are left out."""
    stages = yaml.safe_load((toys.ROOT / "recipes" / "distillation.yaml").read_text())["stages"]
    preset = yaml.safe_load((PRESETS / f"{student}.yaml").read_text())
    method = {name: value for name, value in preset.items() if name not in ("paper", "title", "about", "epochs")}
    own = stages[student]
    assert own == stages["plain"] | method | {"providers": own["providers"]}
    assert {provider["path"] for provider in own["providers"]} == {"teacher"}
