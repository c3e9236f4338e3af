"""recipes/process_model.yaml, small: draft, label, curate, learn the labels, and RLVR with what learned them, stage by stage."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.files import read_json
from pipelines.curate.run import run as curate
from pipelines.data import dataset, samples
from pipelines.data.step_records import steps_of
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.reward_model.steps import StepTrainer
from pipelines.rlvr import reward_models
from pipelines.rlvr.train import Trainer as Rlvr
from pipelines.sample.run import run as sample
from pipelines.sample.steps import label_steps
from pipelines.sft.run import Trainer as Sft
from pipelines.stage.report import Report

SMALL = [
    "model.fresh.config.hidden_size=32", "model.fresh.config.intermediate_size=64", "model.fresh.config.num_hidden_layers=2",
    "model.fresh.config.num_attention_heads=2", "model.fresh.config.num_key_value_heads=2", "data.sources.0.size=400",
    "cold.steps=40", "drafts.problems=12", "drafts.k=3", "drafts.sampling.max_tokens=32", "labels.k=2", "labels.sampling.max_tokens=8",
    "steps.splits={train: 0.5, heldout: 0.5}", "scorer.epochs=null", "scorer.steps=2", "scorer.pairs_per_step=8",
    "scorer.optimizer.warmup=0",
    *(
        f"{stage}.{field}"
        for stage in ("plain", "clip", "wrs")
        for field in ("steps=1", "prompts=2", "group_size=4", "sampling.max_tokens=24", "optimizer.warmup=0")
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every stage up to the process reward model, each in a folder of its name."""
    folder = tmp_path_factory.mktemp("process_model")
    recipe = read_recipe(toys.ROOT / "recipes" / "process_model.yaml", SMALL)
    check(recipe)
    place = {name: folder / name for name in recipe.stages}
    model, settings = recipe.model, {name: recipe.node(name).settings for name in recipe.stages}

    def trained(kind, name, **more):
        (place[name] / "out").mkdir(parents=True)
        report = Report(place[name], committed=True)
        kind(settings[name], model, out=place[name] / "out", work=place[name], report=report, seed=0, **more).run()
        return str(place[name] / "out" / "model")

    place["data"].mkdir()
    curate(settings["data"], model, out=place["data"], report=Report(folder / "w"), seed=0)
    cold = trained(Sft, "cold", data=place["data"])
    common = {"start": cold, "seed": 0}
    sample(settings["drafts"], model, data=place["data"], out=place["drafts"], report=Report(folder / "w"), **common)
    label_steps(
        settings["labels"], model, data=place["drafts"], out=place["labels"], report=Report(folder / "w"), **common
    )
    place["steps"].mkdir()
    curate(
        settings["steps"], model, out=place["steps"], report=Report(folder / "w"), seed=0, samples={0: place["labels"]}
    )
    trained(StepTrainer, "scorer", data=place["steps"], start=cold)
    return recipe, place, cold


@pytest.mark.slow
def test_the_drafts_steps_are_records(made):
    _, place, _ = made
    rows = [row for row in samples.read(place["labels"]) if row["steps"]]
    records = [steps_of(p) for split in ("train", "heldout") for p in dataset.read_split(place["steps"], split)]
    assert 0 < len(records) <= len(rows) and max(len(record.steps) for record in records) > 1
    assert {"".join(record.steps) for record in records} <= {row["text"].strip() for row in rows}
    about = read_json(place["scorer"] / "out/report/reward_model.json")
    assert about["loss"] == "step_bce" and {"accuracy", "ece", "brier"} <= about["heldout"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["clip", "wrs"])
def test_the_policy_is_paid_by_the_model_s_steps(made, tmp_path, stage):
    recipe, place, cold = made
    section = recipe.node(stage).settings
    inputs = {each.label: str(place[each.value] / "out") for each in reward_models.named(section.model_dump())}
    assert len(inputs) == 1
    settings = type(section).model_validate(reward_models.with_folders(section.model_dump(), inputs))
    (tmp_path / "out").mkdir()
    made_trainer = Rlvr(
        settings, recipe.model, start=cold, data=place["data"], out=tmp_path / "out", work=tmp_path,
        report=Report(tmp_path, committed=True), seed=0,
    )  # fmt: skip
    made_trainer.run()
    (values,) = [values for _, values in toys.history(tmp_path)]
    prefix = "reward_component/process_model.steps" if stage == "clip" else "reward_component/steps"
    assert values[prefix] >= 1
