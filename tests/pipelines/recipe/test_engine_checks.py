"""What the plan says of a recipe whose stages a remote engine trains."""

from __future__ import annotations

import json

import pytest
import toys
import yaml

from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.engine_checks import refusals
from pipelines.recipe.read import read_recipe

ENGINE = "{url: http://127.0.0.1:8000, rank: 4}"
BOTH = (f"sft.engine={ENGINE}", f"rlvr.engine={ENGINE}")


@pytest.fixture
def of(tmp_path, start):
    path = toys.recipe(tmp_path)
    body = yaml.safe_load(path.read_text())
    body["model"] = {"path": str(start / "sft/out/model")}
    path.write_text(yaml.safe_dump(body))
    return path


def test_both_stages_on_a_server(of):
    check(read_recipe(of, list(BOTH)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([BOTH[1]], "rlvr.engine: sft is trained elsewhere"),
        ([BOTH[0], "rlvr.engine={url: http://a, rank: 8}"], "its base_model and rank are not those of sft"),
        ([*BOTH, "rlvr.lora=8"], "engine.rank is that of the adapters"),
        ([*BOTH, "rlvr.processes=2"], "rlvr.processes"),
        ([*BOTH, "sft.processes=2"], "sft.processes"),
        ([*BOTH, "rlvr.gradient_checkpointing=true"], "rlvr.gradient_checkpointing"),
        ([*BOTH, "rlvr.sampler={url: http://a, weights: /w}"], "rlvr.sampler"),
        ([*BOTH, "rlvr.sampling.temperature=0.7"], "rlvr.sampling"),
        ([*BOTH, "rlvr.advantage={kind: gae}", "rlvr.providers=[critic]"], "critic needs the policy's weights, hidden states or logits"),
        ([*BOTH, "rlvr.auxiliary_loss=[{kind: entropy, weight: 0.1}]"], "the gradient of entropies"),
        ([*BOTH, "presets=[gkd]", "rlvr.providers=[{kind: teacher_top, path: x/y}]"], "tokens that were not sampled"),
        ([*BOTH, "presets=[sdpo]"], "needs"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(of, overrides, message):
    with pytest.raises(RecipeError) as refused:
        check(read_recipe(of, overrides))
    assert message in str(refused.value)


def preferring(tmp_path, start, **fields):
    """A recipe whose preference stage starts from the base, trained on a server."""
    source = {"kind": "file", "path": str(tmp_path / "pairs.jsonl"), "splits": ["pairs"]}
    row = {"prompt": "sort ba", "chosen": "ab", "rejected": "ba"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    stages = {
        "data": {"kind": "curate", "sources": [source], "splits": {"pairs": 1.0}},
        "dpo": {
            "kind": "preference",
            "data": "data",
            "split": "pairs",
            "heldout": None,
            "steps": 2,
            "engine": yaml.safe_load(ENGINE),
            **fields,
        },
    }
    path = tmp_path / "dpo.yaml"
    path.write_text(yaml.safe_dump({"name": "dpo", "model": {"path": str(start / "sft/out/model")}, "stages": stages}))
    return read_recipe(path)


def test_a_preference_stage_on_a_server(tmp_path, start):
    check(preferring(tmp_path, start))
    with pytest.raises(RecipeError, match="wpo needs the probabilities of tokens that are in no answer"):
        check(preferring(tmp_path, start, loss="wpo"))
    with pytest.raises(RecipeError, match=r"engine\.rank is that of the adapters"):
        check(preferring(tmp_path, start, lora=8))


def test_a_fresh_model_has_no_server(tmp_path):
    with pytest.raises(RecipeError, match=r"model\.fresh"):
        check(read_recipe(toys.recipe(tmp_path), list(BOTH)))


def test_the_well_known_methods_are_taken(of):
    for preset in ("grpo", "dapo", "dr_grpo", "gspo", "rloo", "cispo", "reinforce_pp"):
        assert not list(refusals(read_recipe(of, [f"presets=[{preset}]"]).rlvr)), preset
