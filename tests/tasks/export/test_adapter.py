"""Adapters exported by themselves: peft loads them on their base, the card names it, and what has none says so."""

from __future__ import annotations

import json
import re
import shutil

import exported
import hub_server
import pytest
import torch
import toys
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.base.errors import UserError
from tasks.export import adapter, folder, hub, trained

IDS = torch.tensor([[5, 6, 7, 8]])
FILES = {"adapter_config.json", "adapter_model.safetensors", "README.md", "whetstone.json"}


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def named(to) -> str:
    return json.loads((to / "adapter_config.json").read_text())["base_model_name_or_path"]


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("org/small-model", "org/small-model"), ("/home/ann/models/old", "old"), ("./models/old", "old"), ("~/old", "old"),
        ("/home/ann/base", "base"), ("./small.gguf", "small.gguf"), ("package:llm_small", "package:llm_small"),
        ("../base", "out/base"), ("COLD", "sft-"),
    ],
)  # fmt: skip
def test_peft_loads_it_on_its_base(home, tmp_path, base, told):
    made = exported.run(adapted=base)
    files = folder.write(trained.find("mine"), tmp_path / "out", only_adapter=True)
    artifact = made["short"].path
    start = AutoModelForCausalLM.from_pretrained(artifact / "base")
    whole = logits(AutoModelForCausalLM.from_pretrained(artifact / "model"))
    assert (logits(start) - whole).abs().max() > 0.05
    torch.testing.assert_close(logits(PeftModel.from_pretrained(start, tmp_path / "out")), whole, atol=1e-5, rtol=0)
    assert named(tmp_path / "out").startswith(told)
    assert "assistant" in AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    there = {p.name for p in (tmp_path / "out").iterdir()}
    assert there >= FILES and not there & {"config.json", "generation_config.json", "model.safetensors"}
    assert ("base" in there) == (base == "../base")
    assert not any("/home/ann" in p.read_text(errors="replace") for p in files)
    _, head, body = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "peft"
    assert f"`{named(tmp_path / 'out').removeprefix('out/')}`" in body and "These are adapters (LoRA)" in body
    assert ("whetstone export sft-" in body) == (base == "COLD")


@pytest.mark.parametrize("base", ["../base", "COLD"])
def test_the_lines_of_code_on_its_card_run(home, tmp_path, monkeypatch, base):
    made = exported.run(adapted=base)
    folder.write(trained.find("mine"), tmp_path / "out", only_adapter=True)
    if base == "COLD":  # as `whetstone export` would, which the card names
        shutil.copytree(made["short"].path / "base", tmp_path / made["cold"].name)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.S)
    names: dict = {}
    exec(code.replace("max_new_tokens=256", "max_new_tokens=3"), names)
    whole = AutoModelForCausalLM.from_pretrained(made["short"].path / "model")
    torch.testing.assert_close(logits(names["model"]), logits(whole), atol=1e-5, rtol=0)


def test_the_code_on_its_card_loads_the_base_that_it_was_trained_on(home, tmp_path):
    made = exported.run(adapted="org/small-model")
    model = trained.find("mine")
    config = made["short"].path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"revision": "abc"}))
    folder.write(model, tmp_path / "out", only_adapter=True)
    text = (tmp_path / "out" / "README.md").read_text()
    assert 'AutoModelForCausalLM.from_pretrained("org/small-model", revision="abc")' in text
    config.write_text(config.read_text().replace("org/small-model", "./small.gguf"))
    folder.write(model, tmp_path / "gguf", only_adapter=True)
    text = (tmp_path / "gguf" / "README.md").read_text()
    assert "GGUF file of the base model `small.gguf`" in text and 'gguf_file="FILE.gguf"' in text


def test_what_has_no_adapter_says_so(home, tmp_path):
    made = exported.run(adapted="org/small-model")
    with pytest.raises(
        UserError, match=r"--adapter: the stage cold .* without `lora`\. Name a stage that has some: RUN/short"
    ):
        folder.write(trained.find("mine/cold"), tmp_path / "out", only_adapter=True)
    with pytest.raises(UserError, match=r"--gguf.*whole model"):
        folder.write(trained.find("mine"), tmp_path / "out", only_adapter=True, gguf="q8_0")
    shutil.rmtree(made["short"].path / "adapter")
    model = trained.Trained(made["short"], "short", None, trained.find("mine/cold").known)
    with pytest.raises(UserError, match=r"did not keep them.* Run its recipe again"):
        adapter.of(model)
    assert not (tmp_path / "out").exists()


def test_a_run_without_lora(home, tmp_path):
    exported.run()
    with pytest.raises(UserError, match=r"without `lora`\. Leave --adapter out"):
        folder.write(trained.find("mine"), tmp_path / "out", only_adapter=True)
    with hub_server.running() as there, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", there.url)
        for asked, told in (({"only_adapter": True}, "without `lora`"), ({"gguf": "q8_0"}, "--gguf")):
            with pytest.raises(UserError, match=told):
                hub.push(trained.find("mine"), "ann/mine", **asked)
        assert not there.created


def test_an_export_of_the_model_has_no_adapter_in_it(home, tmp_path):
    exported.run(adapted="org/small-model")
    files = folder.write(trained.find("mine"), tmp_path / "out")
    assert not any("adapter" in path.name for path in files) and (tmp_path / "out" / "config.json").exists()
    assert "These are adapters" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_the_commands(home, tmp_path):
    made = exported.run(adapted="COLD")
    done = toys.whetstone("export", "mine", "--adapter", "--to", str(tmp_path / "out"), home=home)
    assert "its card is README.md" in done.stdout and named(tmp_path / "out") == made["cold"].name
    done = toys.whetstone("export", "mine/cold", "--adapter", "--to", str(tmp_path / "other"), home=home, check=False)
    assert done.returncode == 2 and "RUN/short" in done.stderr and not (tmp_path / "other").exists()
    with hub_server.running() as there:
        done = toys.whetstone(
            "push", "mine", "ann/mine", "--adapter", home=home, HF_ENDPOINT=there.url, HF_TOKEN="hf_mine",
            HF_HUB_DISABLE_XET="1", HF_HOME=str(home / "hf"),
        )  # fmt: skip
        assert there.files.keys() >= FILES and "config.json" not in there.files and len(there.commits) == 1
        assert b'from_pretrained(model, "ann/mine")' in there.files["README.md"]
