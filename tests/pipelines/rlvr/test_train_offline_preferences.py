"""Offline by preferences: a policy learns from stored episodes alone, paid by a reward model of their turns and weighed by advantage."""

from __future__ import annotations

import pytest
import toys

from pipelines.contract.model_settings import Model
from pipelines.data import dataset, samples
from pipelines.engine import models
from pipelines.engine.reward_model import RewardNetwork, save
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.train import Trainer
from pipelines.sample import run as sample
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report


@pytest.mark.slow
def test_a_policy_learns_offline_from_a_reward_model_s_view_of_turns(tmp_path, lake, monkeypatch):
    """Each row is imitated by its weight; what is paid is the model's score of every turn, and the environment's verdict is reported."""
    drafts, model = tmp_path / "drafts", str(lake / "sft/out/model")
    settings = Sample.model_validate(
        {"problems": 8, "k": 4, "episodes": {"max_turns": 3}, "sampling": {"max_tokens": 6}, "split": "train"}
    )
    sample.run(
        settings, Model(path=model), start=model, data=lake / "data", out=drafts, report=Report(drafts / "w"), seed=1
    )
    few = tmp_path / "few"
    few.mkdir()
    for path in (lake / "data").iterdir():
        if path.name != "train.parquet":
            (few / path.name).symlink_to(path)
    from pipelines.data.dataset import Writer

    writer = Writer(few / "train.parquet", 100)
    for problem in dataset.read_split(lake / "data", "train")[:8]:
        writer.add(problem)
    writer.close()
    own = models.load_tokenizer(model)
    save(RewardNetwork(toys.model(vocab=len(own)), 1, seed=0, text=False), own, tmp_path / "scorer", {})
    recipe = read_recipe(toys.lake(tmp_path), [
        "rlvr.rollout=stored_episodes", f"rlvr.reward={{kind: model, model: '{tmp_path / 'scorer'}', turns: true}}",
        "rlvr.advantage={kind: awr, temperature: 0.5}", "rlvr.objective=reinforce", "rlvr.divergence=null", "rlvr.steps=2",
        "rlvr.loss_aggregation=token_mean", "rlvr.sampling.max_tokens=6", "rlvr.monitors=[]",
    ])  # fmt: skip
    (tmp_path / "work/out").mkdir(parents=True)
    made = Trainer(
        recipe.rlvr, recipe.model, start=model, data=few, out=tmp_path / "work/out", work=tmp_path / "work",
        report=Report(tmp_path / "work", committed=True), seed=0, inputs={"samples": drafts},
    )  # fmt: skip
    monkeypatch.setattr(made.sampler, "extend", None)
    made.run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    assert len(history) == 2 and all("reward_component/turn.model" in values for values in history)
    rows, _ = made.collect(0)
    by_text = {(row["uid"], row["text"]): row for row in samples.read(drafts)}
    for row in rows:
        told = by_text[row.uid, row.text]
        assert row.components["outcome"] == told["score"] and row.correct == told["correct"]
        assert row.score == pytest.approx(sum(row.turn_reward)) and len(row.turn_reward) == len(row.turn_state)
