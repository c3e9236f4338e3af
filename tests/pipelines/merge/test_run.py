"""The stage on two small models, and what is refused before it."""

from __future__ import annotations

import json

import pytest
import torch
import toys
import yaml

from evaluation.documents import questions
from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.engine.models import load_model, save_model, train_tokenizer
from pipelines.merge import run
from pipelines.merge.settings import Merge
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report
from tasks import keys


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer("char", 128, [q for _, q in questions({"tasks": [{"name": "palindromes"}]})])
    model = toys.model("llama", len(tokenizer))
    for name in ("first", "second"):
        save_model(model, tokenizer, out / name, {"stage": name})
        with torch.no_grad():
            for weight in model.parameters():
                weight += 1
    return [str(out / name) for name in ("first", "second")]


def merged(folders, tmp_path, origin=None, **settings):
    model = Model(path=folders[0])
    (tmp_path / "out").mkdir()
    report = Report(tmp_path)
    run.run(Merge(**settings), model, folders=folders, origin=origin, out=tmp_path / "out", report=report)
    return load_model(tmp_path / "out" / "model", model).state_dict()


@pytest.mark.parametrize(("settings", "moved"), [({}, 0.5), ({"weights": [1, 3]}, 0.75)])
def test_the_mean_of_two_models_lies_between_them(folders, tmp_path, settings, moved):
    first = load_model(folders[0], Model(path=folders[0])).state_dict()
    for name, tensor in merged(folders, tmp_path, **settings).items():
        assert torch.allclose(tensor, first[name] + moved, atol=1e-5), name


def test_weights_stored_in_bfloat16_are_summed_in_float32(folders, tmp_path):
    """Rounded once, when the result is stored: sums of rounded shares end elsewhere."""
    stored = {"dtype": "bfloat16", "weights_dtype": "bfloat16"}
    model = Model(path=folders[0], **stored)
    (tmp_path / "out").mkdir()
    settings = Merge(weights=[1, 2])
    run.run(settings, model, folders=folders, origin=None, out=tmp_path / "out", report=Report(tmp_path))
    got = load_model(tmp_path / "out" / "model", model).state_dict()
    first, second = (load_model(folder, model).state_dict() for folder in folders)
    for name, tensor in got.items():
        assert tensor.dtype == torch.bfloat16
        exact = (1 / 3) * first[name].float() + (2 / 3) * second[name].float()
        assert torch.equal(tensor, exact.bfloat16()), name


def test_differences_to_an_origin(folders, tmp_path):
    first = load_model(folders[0], Model(path=folders[0])).state_dict()
    got = merged(folders, tmp_path, origin=folders[0], method="ties", density=1.0, scale=0.5)
    assert all(torch.allclose(got[name], first[name] + 0.5, atol=1e-5) for name in first)


def test_models_of_other_shapes_are_refused(folders, tmp_path):
    other = toys.model("llama", 60)
    tokenizer = train_tokenizer("char", 128, [q for _, q in questions({"tasks": [{"name": "palindromes"}]})])
    save_model(other, tokenizer, tmp_path / "other", {"stage": "other"})
    with pytest.raises(ModelError):
        merged([folders[0], str(tmp_path / "other")], tmp_path)


def recipe(tmp_path, **merge):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rl, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    trained = {"kind": "rlvr", "data": "data", "model": "cold", **rl}
    stages = {"data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft}, "a": trained,
              "b": {**trained, "seed": 1}, "both": {"kind": "merge", "models": ["a", "b"], **merge}}  # fmt: skip
    path = tmp_path / "merge.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def test_a_merge_is_a_stage_like_any_other(tmp_path):
    """Nothing outside of its package names it: the registry, the graph and the keys know it from its `kind.py`."""
    read = recipe(tmp_path, method="ties", origin="cold")
    check(read)
    node = read.node("both")
    assert node.inputs == {"models.0": "a", "models.1": "b", "origin": "cold"}
    parts = keys.key_parts(read, "both", dict.fromkeys(node.inputs, "d"))
    assert "pipelines.merge.arithmetic" in parts["source"] and "pipelines.rlvr.train" not in parts["source"]
    assert json.loads(json.dumps(node.kind.job(node))) == {"models": ["models.0", "models.1"]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"models": ["a"]}, r"both\.models: one model"),
        ({"weights": [1.0]}, r"both\.weights: 1 weights for 2 models"),
        ({"models": ["a", "b", "cold"], "method": "slerp"}, r"both\.method: slerp"),
        ({"method": "ties"}, r"both\.origin: .* fresh"),
        ({"models": ["a", "data"]}, r"both\.models: data .* makes data"),
    ],
)
def test_what_cannot_be_merged_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, **fields))
