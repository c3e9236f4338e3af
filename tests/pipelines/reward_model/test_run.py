"""The stage: TRL's loss and gradient, exact resume, a checkpoint that others read, what its card says, what is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import adapted
import forks
import pytest
import torch
import toys
from reward_pairs import SETTINGS, job, recipe
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from pipelines.base.errors import DataError, RecipeError
from pipelines.base.files import contents, read_json
from pipelines.contract.model_settings import Model
from pipelines.curate.run import run as curate
from pipelines.data.pair_records import Pair, read_pairs
from pipelines.engine import models
from pipelines.engine.parallel import Weights
from pipelines.engine.reward_model import RewardNetwork
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.reward_model.pack import Tokens, chunks
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.stage.report import Report
from tasks import keys

sys.path.insert(0, str(Path(__file__).parent))
import trl_batch


class OnTrlBatch(Trainer):
    """The stage's own loss and gradient on the batch of `trl_batch`, nothing of the loop."""

    def __init__(self, budget: int, **loss) -> None:
        settings = RewardModel.model_validate(SETTINGS | {"loss": {"kind": "bradley_terry", **loss}, "max_length": 32})
        self.settings = settings.model_copy(update={"micro_batch_tokens": budget})
        from pipelines.reward_model.kind import bound_loss

        self.loss, self.two_heads, self.text = bound_loss(settings), False, False
        self.compares, self.user_pairs, self.shares_turns = False, None, False
        classifier = trl_batch.classifier()
        config = classifier.config
        causal = AutoModelForCausalLM.from_config(config).float()
        causal.model.load_state_dict(classifier.model.state_dict())
        self.model = RewardNetwork(causal, 1, seed=0, text=False)
        self.policy = self.model.policy
        self.weights = Weights(self.model, self.policy, self.world, self.model)
        with torch.no_grad():
            self.model.heads.weight.copy_(classifier.score.weight)
        self.tokenizer = type("Padding", (), {"pad_token_id": 0})

    def gradient(self):
        batch = [
            Tokens(
                Pair(f"{i}", [], "", "", margin=row["margin"]), row["chosen_ids"], row["rejected_ids"], trl_batch.PROMPT
            )
            for i, row in enumerate(trl_batch.PAIRS)
        ]
        loss, _ = self._summed(batch, range(len(batch)))
        named = {"score.weight": self.model.heads.weight.grad}
        for name, weight in self.model.model.model.named_parameters():
            named[f"model.{name}"] = weight.grad
        return loss, trl_batch.summary(named)


@pytest.mark.parametrize("case", trl_batch.CASES)
@pytest.mark.parametrize("budget", [8, 512])
def test_loss_and_gradient_are_those_of_trl(case, budget):
    """Against TRL 1.16.0's RewardTrainer; trl.json is what `trl_batch.py` made of it."""
    margins, center = trl_batch.CASES[case]
    golden = json.loads((Path(__file__).parent / "trl.json").read_text())["cases"][case]
    loss, gradient = OnTrlBatch(budget, margin_scale=float(margins), centering=center or 0.0).gradient()
    assert loss == pytest.approx(golden["loss"], abs=1e-5)
    assert gradient.keys() == golden["gradient"].keys()
    for name, told in golden["gradient"].items():
        assert gradient[name] == pytest.approx(told, abs=1e-5, rel=1e-5), name


@pytest.mark.slow
def test_it_learns_and_its_card_is_about_the_heldout_pairs(begun, trainer, tmp_path):
    metrics = trainer(tmp_path, steps=60, optimizer={"learning_rate": 0.01}).run()
    assert metrics["accuracy"] > 0.9 and metrics["loss_heldout"] < 0.4
    assert {"ece", "brier", "std_within_prompt", "length_correlation"} <= metrics.keys()
    lines = [line["values"] for line in toys.spool(tmp_path) if line.get("kind") == "metrics"]
    assert lines[0]["loss/train"] > lines[-1]["loss/train"]
    assert lines[-1]["accuracy/heldout"] == pytest.approx(metrics["accuracy"])
    about = read_json(tmp_path / "out/report/reward_model.json")
    assert (
        about["heldout"]["accuracy"] == metrics["accuracy"]
        and "| accuracy |" in (tmp_path / "out/report/card.md").read_text()
    )
    pairs = read_pairs(begun / "data", "heldout")
    scorer = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "model").eval()
    tokenizer = models.load_tokenizer(tmp_path / "out" / "model")
    from pipelines.data.chat import render_answer

    def score(pair, text):
        ids, _ = render_answer(tokenizer, pair.prompt, text, "x")
        with torch.no_grad():
            return float(scorer(torch.tensor([ids])).logits)

    won = [score(p, p.chosen) > score(p, p.rejected) for p in pairs]
    assert sum(won) / len(won) == pytest.approx(metrics["accuracy"])


@pytest.mark.slow
def test_lora_and_an_ensemble_of_heads(begun, trainer, tmp_path):
    changes = {"lora": {"rank": 4}, "heads": 3, "optimizer": {"learning_rate": 0.01}, "steps": 60}
    metrics = trainer(tmp_path, **changes).run()
    assert metrics["accuracy"] > 0.75
    about = json.loads((tmp_path / "out" / "model" / "whetstone.json").read_text())
    assert about["heads"] == 3 and len(about["score_mean"]) == len(about["score_std"]) == 3
    assert (tmp_path / "out" / "model" / "heads.safetensors").is_file()
    adapted.check(tmp_path / "out", begun / "model", str(begun / "model"), scores=True)


@pytest.mark.slow
def test_a_kill_changes_no_byte(begun, tmp_path):
    """SIGKILL after a commit that is not the last, in the stage's own process; then to the end."""
    changes = {"steps": 60, "checkpoint_selection": "best", "commit": {"every": 5}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forks.run(job(begun, whole, **changes), cwd=toys.ROOT, check=True, capture_output=True)
    command = job(begun, killed, **changes)
    child = forks.Popen(command, cwd=toys.ROOT, stdout=subprocess.DEVNULL)
    while not (killed / "checkpoints" / "LATEST.json").exists():
        assert child.poll() is None
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (killed / "out" / "model").exists()
    forks.run(command, cwd=toys.ROOT, check=True, capture_output=True)
    assert contents(whole / "out") == contents(killed / "out")
    assert [line.get("step") for line in toys.spool(killed) if line["kind"] == "metrics"] == list(range(1, 61))


def test_pairs_that_are_too_long_are_dropped(begun, trainer, tmp_path):
    run = trainer(tmp_path, max_length=13)
    assert 0 < len(run.pairs) < len(read_pairs(begun / "data", "train"))
    with pytest.raises(DataError, match=r"reward_model\.max_length: all .* longer than 3"):
        trainer(tmp_path / "none", max_length=3)


def test_chunks_hold_every_pair_once_in_order():
    draw = random.Random(0)
    pairs = [Tokens(None, [1] * draw.randint(1, 30), [1] * draw.randint(1, 30), 1) for _ in range(50)]
    parts = list(chunks(pairs, 64))
    assert [i for part in parts for i in part] == list(range(50))
    assert all(len(part) == 1 or sum(pairs[i].size for i in part) <= 64 for part in parts)


def test_it_is_a_stage_like_any_other(tmp_path):
    read = recipe(tmp_path, seed=3)
    check(read)
    node = read.node("judge")
    assert node.inputs == {"data": "pairs", "model": "cold"} and node.seed == 3
    parts = keys.key_parts(read, "judge", dict.fromkeys(node.inputs, "d"))
    assert {"pipelines.reward_model.run", "pipelines.reward_model.loss.bradley_terry"} <= parts["source"].keys()
    assert "pipelines.rlvr.train" not in parts["source"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "base"}, "fresh model must be trained before REWARD_MODEL"),
        ({"heldout": "other"}, r"judge\.heldout: pairs makes no split called 'other'"),
        ({"data": "cold"}, r"judge\.data: cold .* makes model"),
        ({"loss": "bradley"}, r"judge\.loss: no method called 'bradley'\. Did you mean 'bradley_terry'"),
        ({"loss": {"kind": "bradley_terry", "margin": 1}}, r"judge\.loss\.margin: no such setting"),
        ({"stages": {"after": {"kind": "sample", "data": "data", "model": "judge"}}},
         r"after\.model: judge is a stage of kind reward_model, which makes reward_model, and model is wanted"),
        ({"micro_batch_tokens": 65}, "micro_batch_tokens must hold at least one pair"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, **fields))


def test_data_without_pairs_is_refused(begun, tmp_path):
    recipe_read = read_recipe(toys.recipe(tmp_path))
    (tmp_path / "data").mkdir()
    model = Model(path=str(begun / "model"))
    curate(recipe_read.curate, model, out=tmp_path / "data", report=Report(tmp_path / "w"), seed=0)
    with pytest.raises(DataError, match="holds no pair"):
        Trainer(
            RewardModel.model_validate(SETTINGS), model, data=tmp_path / "data", out=tmp_path / "out", work=tmp_path,
            report=Report(tmp_path), seed=0, start=str(begun / "model"),
        )  # fmt: skip


@pytest.mark.slow
def test_a_base_in_four_bits(begun, trainer, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
    changes = {"lora": {"rank": 4, "load_in_4bit": True}, "optimizer": {"learning_rate": 0.01}, "steps": 60}
    assert trainer(tmp_path, **changes).run()["accuracy"] > 0.7
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "model")
