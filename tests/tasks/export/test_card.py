"""What a model's card says, and what it keeps to itself."""

from __future__ import annotations

import re

import exported
import pytest
import vision_models
import yaml

from pipelines.contract.model_settings import Model
from pipelines.data import marks
from pipelines.engine import models, vision
from pipelines.recipe.read import read_recipe
from tasks.export import card, trained


def parts(text: str) -> tuple[dict, str]:
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_what_it_says(home):
    made = exported.run(name="dapo · seed 5")
    head, body = parts(card.text(trained.find("mine"), "ann/mine"))
    assert (
        head["license"] == "unknown"
        and head["base_model"] == "org/small-model"
        and head["datasets"] == ["openai/gsm8k"]
    )
    assert head["library_name"] == "transformers" and head["tags"] == ["whetstone", "sft", "rlvr"]
    (index,) = head["model-index"]
    assert index["results"][0]["metrics"][0]["value"] == 0.75
    assert "| sums | pass@1 | 0.25 [0.125, 0.5] | 0.75 [0.5, 0.875] | 40 |" in body and "Value [90 % interval]" in body
    assert "| openai/gsm8k | hub | train | MIT |" in body and "train: 90, heldout: 10" in body
    order = [body.index(made[name].name) for name in ("data", "cold", "short")]
    assert order == sorted(order) and "7 steps, advantage grpo, seed 5" in body
    assert exported.SYSTEM in body and exported.RUN in body
    assert "of stage `short` of the recipe `mine`" in body, (
        "and not what the run is called, which is its preset and changes"
    )


def test_no_folder_of_this_machine_and_no_password(home, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_machine")
    exported.run(base="/home/ann/models/old")
    text = card.text(trained.find("mine"), "hf_of_this_machine", licence="https://ann:pw@host/licence")
    assert "/home/ann" not in text and "a local model called old" in text and "| rows.jsonl | file |" in text
    assert "hf_of_this_machine" not in text and ":pw@" not in text
    assert "base_model" not in parts(text)[0]


@pytest.mark.parametrize("licence", ["apache-2.0", None])
def test_the_licence_is_said_or_unknown(home, licence):
    exported.run()
    head, body = parts(card.text(trained.find("mine"), "mine", licence))
    assert head["license"] == (licence or "unknown")
    assert ("nobody has said it" in body) == (licence is None) and ("CC-BY-4.0, MIT" in body) == (licence is None)


def test_a_model_that_nobody_evaluated(home):
    made = exported.run()
    for path in made["scores"].path.glob("*"):
        path.unlink()
    assert "No evaluation of this model is known." in card.text(trained.find("mine"), "mine")


def test_the_lines_of_code_on_it_run(home, tmp_path, monkeypatch):
    from tasks.export import folder

    exported.run()
    folder.write(trained.find("mine"), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.S)
    assert '"out"' in code
    exec(code.replace("max_new_tokens=256", "max_new_tokens=4"), {"print": lambda text: text})


@pytest.mark.parametrize("family", ["llava", "fresh"])
def test_the_lines_for_a_model_that_sees_run(tmp_path, monkeypatch, family):
    if family == "fresh":
        settings = read_recipe(vision_models.recipe(tmp_path)).model
        tokenizer = models.train_tokenizer("char", 64, ["abcdefghijklmnopqrstuvwxyz. "])
        marks.attach(tokenizer, vision.fresh_reader(settings.fresh.vision, tokenizer))
        network = models.fresh_model(settings, tokenizer, 0)
    else:
        settings = Model(path=str(vision_models.make(family, tmp_path / "start")))
        tokenizer = models.load_tokenizer(tmp_path / "start", settings)
        network = models.load_model(tmp_path / "start", settings)
    models.save_model(network, tokenizer, tmp_path / "out", {})
    vision_models.picture(40, 24, 1).save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    code, told = card._use("out", None, tmp_path / "out"), []
    exec(code.replace("max_new_tokens=256", "max_new_tokens=4"), {"print": told.append})
    assert len(told) == 1 and isinstance(told[0], str)
