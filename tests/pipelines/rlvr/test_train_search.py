"""Retrieval through the real trainer: rewrites paid by rank, and a search agent whose queries are judged."""

from __future__ import annotations

import math

import pytest
import torch
import toys
import yaml

pytest.importorskip("bm25s")


def recipe(folder, task, demonstrated, trained):
    """The tools recipe, on another environment."""
    path = toys.tools(folder)
    body = yaml.safe_load(path.read_text())
    for source, config in zip(body["curate"]["sources"], (demonstrated, trained), strict=True):
        source |= {"task": task, "config": config}
    body["evaluate"]["tasks"] = ["palindromes"]
    path.write_text(yaml.safe_dump(body))
    return path


def lines_of(folder, begun, path, *overrides):
    made = toys.trainer(folder, begun, path, "rlvr.steps=2", *overrides)
    before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
    made.run()
    lines = [line["values"] for line in toys.spool(folder / "work") if line["kind"] == "metrics"]
    assert len(lines) == 2 and all(math.isfinite(value) for line in lines for value in line.values())
    after = torch.cat([p.detach().flatten() for p in made.learner.model.parameters()])
    assert not torch.equal(before, after)
    return lines


@pytest.mark.slow
def test_convsearch_r1_trains(tmp_path):
    """A little model does not learn the tags: what it says after its reasoning is searched as it stands."""
    path = recipe(tmp_path, "conv_search", {"demonstrations": True}, {})
    begun = toys.start(tmp_path, path, ["sft.turns=last", "sft.steps=30"])
    plain = "rlvr.reward={kind: verifier, verifier: retrieval, info: {form: plain}}"
    lines = lines_of(
        tmp_path / "run", begun, path, "presets=[convsearch_r1]", "rlvr.rollout=single_turn", "rlvr.prompts=8", plain
    )
    for line in lines:
        assert line["reward/unscored_share"] == 0 and -0.1 <= line["reward/mean"] <= 2
        assert 0 <= line["reward_component/malformed"] <= 1 and 0 <= line["reward_component/mrr"] <= 1
    assert lines[0]["reward/group_std"] > 0


@pytest.mark.slow
def test_safesearch_trains_and_says_both(tmp_path):
    path = recipe(tmp_path, "search_questions", {"demonstrations": True, "errors": 0.5}, {})
    begun = toys.start(tmp_path, path, [])
    lines = lines_of(
        tmp_path / "run", begun, path, "presets=[safesearch]", "rlvr.rollout.max_turns=2", "rlvr.prompts=8"
    )
    for line in lines:
        assert line["reward/unscored_share"] == 0 and line["rollout/error_share"] == 0
        for name in ("safe", "helpful", "utility"):
            assert 0 <= line[f"reward_component/{name}"] <= 1
        assert line["reward_component/unsafe_queries"] >= 0
