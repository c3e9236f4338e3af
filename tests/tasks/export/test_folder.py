"""The exported folder: loaded by transformers, complete or absent, and GGUF through a converter."""

from __future__ import annotations

import json
import sys

import exported
import pytest
import torch

from pipelines.base.errors import UserError
from tasks.export import folder, trained

CONVERTER = """import sys
folder, _, out, _, kind = sys.argv[1:]
if kind == "f16":
    sys.exit("Model ToyForCausalLM is not supported")
open(out, "w").write(f"GGUF of {folder} as {kind}")
"""


def test_transformers_loads_it(home, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    made = exported.run()
    files = folder.write(trained.find("mine"), tmp_path / "out")
    there = {path.name for path in files}
    assert there == {p.name for p in (made["short"].path / "model").iterdir()} | {"README.md"}
    loaded, own = (AutoModelForCausalLM.from_pretrained(p) for p in (tmp_path / "out", made["short"].path / "model"))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded(ids).logits, own(ids).logits)
    assert "assistant" in AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == 2
    about = json.loads((tmp_path / "out" / "whetstone.json").read_text())
    assert about["system_prompt"] == exported.SYSTEM and "/home/ann" not in json.dumps(about)
    assert not any("/home/ann" in p.read_text(errors="replace") for p in files)


def test_nothing_is_overwritten_or_left_in_part(home, tmp_path, monkeypatch):
    exported.run()
    model = trained.find("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="Name a new folder"):
        folder.write(model, tmp_path / "full")
    with pytest.raises(UserError, match="can be made"):
        folder.write(model, tmp_path / "full" / "mine.txt" / "below")
    monkeypatch.delenv(folder.LLAMA_CPP, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"git clone .*llama.cpp`, set LLAMA_CPP"):
        folder.write(model, tmp_path / "out", gguf="q8_0")
    monkeypatch.setenv(folder.LLAMA_CPP, str(tmp_path / "full"))
    with pytest.raises(UserError, match=r"LLAMA_CPP=.*has no convert_hf_to_gguf.py"):
        folder.write(model, tmp_path / "out", gguf="q8_0")
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["full"]
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_gguf_by_the_converter(home, tmp_path, monkeypatch):
    exported.run()
    model = trained.find("mine")
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / folder.CONVERTER).write_text(CONVERTER)
    monkeypatch.setenv(folder.LLAMA_CPP, str(tmp_path / "cpp"))
    assert folder.gguf_converter()[0] == sys.executable
    files = folder.write(model, tmp_path / "out", gguf="q8_0")
    (gguf,) = [p for p in files if p.suffix == ".gguf"]
    assert gguf.name == "out-q8_0.gguf" and gguf.read_text().endswith("as q8_0")
    with pytest.raises(UserError, match="ToyForCausalLM is not supported"):
        folder.write(model, tmp_path / "other", gguf="f16")
    assert not (tmp_path / "other").exists()
