"""The same loss and gradient as TRL's own trainers on one batch; benchmarks/preference_golden.py made the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import preference_golden as golden
from pipelines.contract.model_settings import Model
from pipelines.data.dataset import Writer
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.preference.examples import Examples
from pipelines.preference.run import Trainer
from pipelines.preference.settings import Preference
from pipelines.stage.report import Report

CASES = json.loads(Path(__file__).with_name("trl.json").read_text())["cases"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The reference as a model folder, and any pair as data: the golden rows replace it."""
    folder = tmp_path_factory.mktemp("trl")
    tokenizer = golden.tokenizer_of_texts()
    models.save_model(golden.network(tokenizer, False), tokenizer, folder / "model", {})
    (folder / "data").mkdir()
    writer = Writer(folder / "data" / "train.parquet", 10)
    for number, (prompt, chosen, rejected) in enumerate(golden.TEXTS):
        info = {"chosen": chosen, "rejected": rejected}
        messages = [{"role": "user", "content": prompt}]
        writer.add(
            Problem(uid=str(number), prompt=messages, answer="", verifier="exact", source="s", licence="x", info=info)
        )
    writer.close()
    return folder


def examples(case) -> Examples:
    made = Examples()
    rows = [made.add(tokens, start) for tokens, start in case["rows"]]
    if "desirable" in case:
        made.items = [(row,) for row in rows]
        made.values = {"desirable": torch.tensor(case["desirable"])}
        made.unrelated = [made.add(tokens, start) for tokens, start in case["unrelated"]]
    else:
        half = len(rows) // 2
        made.items = list(zip(rows[:half], rows[half:], strict=True))
        made.values = {"margin": torch.zeros(half)}
    return made


@pytest.mark.parametrize("share", [True, False], ids=["shared", "padded"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_loss_and_gradient_are_those_of_trl(begun, tmp_path, case, share):
    loss = {name: value for name, value in case["ours"].items() if name != "sft_weight"}
    settings = Preference.model_validate({
        "loss": loss, "sft_weight": case["ours"].get("sft_weight", 0), "steps": 1, "heldout": None, "max_length": 64,
        "micro_batch_tokens": 40, "share_prefixes": share, "pairs_per_step": 12,
    })  # fmt: skip
    model = str(begun / "model")
    trainer = Trainer(
        settings, Model(path=model), start=model, data=begun / "data", out=tmp_path / "out", work=tmp_path,
        report=Report(tmp_path), seed=0,
    )  # fmt: skip
    trainer.examples = examples(case)
    trainer.begin()
    golden.set_weights(trainer.model, policy=True)
    tally, *_ = trainer._pass(trainer.examples, range(len(trainer.examples)), "train", backward=True)
    assert tally.loss == pytest.approx(case["loss"], rel=1e-5)
    for name, values in golden.projections(trainer.model).items():
        norm = case["gradient"][name][-1]
        assert values == pytest.approx(case["gradient"][name], rel=1e-5, abs=1e-5 * norm), name


def test_the_file_has_every_loss_of_ours_that_trl_has():
    losses = {case["ours"]["kind"] for case in CASES}
    assert losses == {"dpo", "robust_dpo", "hinge", "ipo", "apo", "mpo", "kto", "orpo", "simpo", "alphapo"}
    kto = next(case for case in CASES if case["name"] == "kto")
    assert sorted(kto["desirable"]) != kto["desirable"] and len(kto["unrelated"]) == len(kto["rows"])
