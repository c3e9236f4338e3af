"""The same loss, weights of tokens and gradient as TRL's own trainers on one batch; benchmarks/preference_golden.py made the file."""

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
from pipelines.preference import run
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
            Problem(
                uid=str(number),
                prompt=messages,
                answer=golden.GOLD[number],
                verifier="exact",
                source="s",
                licence="x",
                info=info,
            )
        )
    writer.close()
    return folder


def examples(case) -> Examples:
    made = Examples()
    rows = [made.add(tokens, start) for tokens, start in case["rows"]]
    if "desirable" in case:
        made.items = [(row,) for row in rows]
        made.values = {"desirable": torch.tensor(case["desirable"])}
        made.unrelated = [made.add(tokens, start) for tokens, start in case.get("unrelated", [])]
    else:
        count = len(golden.TEXTS)
        made.items = list(zip(*(rows[at : at + count] for at in range(0, len(rows), count)), strict=True))
        made.values = {"margin": torch.zeros(count)}
    return made


def listen(trainer, monkeypatch):
    """Row → the loss's derivative by the log-probability of each token of its answer, times -1; complete after the backward pass."""
    heard: list[tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]] = []
    score, scores = trainer.policy.score, trainer._scores

    def listening(layout, chosen, **options):
        logp, other = score(layout, chosen, **options)
        if logp.requires_grad:
            logp.retain_grad()
            rows, tokens = current
            heard.append((rows, tokens, layout.target, logp))
        return logp, other

    def of_pass(micro_batch):
        current[:] = run._answers(trainer.examples, micro_batch.items), micro_batch.rows.tokens
        return scores(micro_batch)

    def weights():
        out = [[0.0] * trainer.examples.length(row) for row in range(len(trainer.examples.tokens))]
        for rows, tokens, target, logp in heard:
            for place, weight in zip(target.tolist(), (-logp.grad).tolist(), strict=True):
                row = rows[place // tokens.shape[1]]
                out[row][place % tokens.shape[1] - trainer.examples.start[row]] = weight
        return out

    current: list = [None, None]
    monkeypatch.setattr(trainer.policy, "score", listening)
    monkeypatch.setattr(trainer, "_scores", of_pass)
    return weights


@pytest.mark.parametrize("share", [True, False], ids=["shared", "padded"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
@pytest.mark.few(32)
def test_loss_and_gradient_are_those_of_trl(begun, tmp_path, monkeypatch, case, share):
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
    weights = listen(trainer, monkeypatch)
    tally, *_ = trainer._pass(trainer.examples, range(len(trainer.examples)), "train", backward=True)
    assert tally.loss == pytest.approx(case["loss"], rel=1e-5)
    of_rows = weights()[: len(case["rows"])]
    scale = max(abs(weight) for row in case["weights"] for weight in row)
    for ours, theirs in zip(of_rows, case["weights"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5 * scale)
    for name, values in golden.projections(trainer.model).items():
        norm = case["gradient"][name][-1]
        assert values == pytest.approx(case["gradient"][name], rel=1e-5, abs=1e-5 * norm), name


def test_the_file_has_every_loss_of_ours_that_trl_has():
    losses = {case["ours"]["kind"] for case in CASES}
    assert losses == {
        "dpo", "robust_dpo", "hinge", "ipo", "apo", "mpo", "kto", "orpo", "simpo", "alphapo", "exo", "nca", "sppo", "discopop", "aot",
        "f_dpo", "ld_dpo", "wpo", "bco", "cpo", "tpo",
    }  # fmt: skip
    kto = next(case for case in CASES if case["name"] == "kto")
    assert sorted(kto["desirable"]) != kto["desirable"] and len(kto["unrelated"]) == len(kto["rows"])
