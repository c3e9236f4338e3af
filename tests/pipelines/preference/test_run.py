"""The stage: what a step's loss is, that layouts agree, that it learns, and that a kill changes no byte."""

from __future__ import annotations

import json
import math
import os
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
import yaml
from pair_toys import SETTINGS, prepare, rows
from safetensors.torch import load_file

from pipelines.base.errors import DataError, Interrupted, RecipeError
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.engine import checkpoint, models
from pipelines.preference.examples import passes
from pipelines.preference.kind import check_reference
from pipelines.preference.settings import Preference
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from tasks import keys


def gradient(made):
    return torch.cat([p.grad.flatten().clone() for p in made.model.parameters() if p.grad is not None])


def metrics(work: Path) -> list[tuple[int, dict]]:
    return [(line["step"], line["values"]) for line in toys.spool(work) if line["kind"] == "metrics"]


def slow_logp(model, tokens, start):
    """The answer's log-probability by transformers' own forward."""
    ids = torch.tensor([tokens])
    logp = model(ids).logits.float().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return logp[start - 1 :].sum()


def test_a_step_s_loss_is_the_mean_over_its_pairs(pairs, trainer, monkeypatch):
    """However it is laid out and cut into passes; against a loop over answers."""
    results = []
    for number, changes in enumerate(
        ({}, {"micro_batch_tokens": 20}, {"share_prefixes": False}, {"micro_batch_tokens": 5000})
    ):
        made = trainer(pairs, str(number), sft_weight=0.5, **changes)
        made.begin()
        monkeypatch.setattr(made.stepper, "step", lambda step: {})
        with torch.no_grad():
            for weight in made.model.parameters():
                weight += 0.05 * torch.sin(torch.arange(weight.numel()).view(weight.shape))
        values = made.make_step(0)
        results.append((values["loss/train"], gradient(made)))
    reference = models.load_model(pairs / "model", Model(path=str(pairs / "model")))
    made.model.zero_grad()
    total, nll, count = torch.zeros(()), torch.zeros(()), 0
    for item in made.epochs.step(0):
        chosen, rejected = made.examples.items[item]
        logp = [
            slow_logp(made.model, made.examples.tokens[row], made.examples.start[row]) for row in (chosen, rejected)
        ]
        with torch.no_grad():
            ref = [
                slow_logp(reference, made.examples.tokens[row], made.examples.start[row]) for row in (chosen, rejected)
            ]
        total = total - torch.nn.functional.logsigmoid(0.1 * (logp[0] - ref[0] - logp[1] + ref[1]))
        nll, count = nll - logp[0], count + made.examples.length(chosen)
    loss = total / 8 + 0.5 * nll / count
    loss.backward()
    oracle = gradient(made)
    for value, each in results:
        assert value == pytest.approx(loss.item(), rel=1e-5)
        torch.testing.assert_close(each, oracle, atol=2e-5, rtol=1e-3)


def test_prompts_are_computed_once_for_both_answers(pairs, trainer):
    shared, padded = trainer(pairs, "a"), trainer(pairs, "b", share_prefixes=False)
    assert shared.run() and padded.run()
    share = [values["tokens/computed_share"] for _, values in metrics(shared.work)]
    assert max(share) < 0.7 < min(values["tokens/computed_share"] for _, values in metrics(padded.work))


@pytest.mark.slow
def test_it_learns_what_is_preferred(pairs, trainer):
    made = trainer(pairs, steps=40)
    result = made.run()
    first, last = metrics(made.work)[0][1], metrics(made.work)[-1][1]
    assert first["loss/train"] == pytest.approx(0.693147, abs=1e-5) and first["rewards/margin"] == pytest.approx(
        0, abs=1e-5
    )
    assert (
        result["accuracy_heldout"] > 0.9
        and last["rewards/margin"] > 0.5
        and last["drift/chosen"] > last["drift/rejected"]
    )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = made.out / "model"
    assert AutoTokenizer.from_pretrained(folder).chat_template and AutoModelForCausalLM.from_pretrained(folder)
    assert json.loads((folder / "whetstone.json").read_text())["stage"] == "preference"


def test_rankings_of_held_out_pairs_are_those_of_a_loop(tmp_path, trainer):
    """By log-probability, per token, of the reference, and of DPO's best policy; the card is about the weights that are handed on."""
    written = rows(120)
    for number, row in enumerate(written):
        row["chosen"] += "abc"[: number % 4]
        if number % 3:
            row["chosen_share"] = 0.3 + number % 5 / 10
    begun = prepare(tmp_path / "shares", written)
    made = trainer(begun, loss={"kind": "dpo", "beta": 0.3}, steps=3, checkpoint_selection="best", evaluate_every=2)
    result = made.run()
    models_of = [models.load_model(folder, Model(path=str(folder))) for folder in (made.out / "model", begun / "model")]
    correct: dict[str, list[bool]] = {
        name: [] for name in ("ranking", "ranking_per_token", "ranking_reference", "ranking_idealised")
    }
    with torch.no_grad():
        for item, numbers in enumerate(made.heldout.items):
            lengths = [made.heldout.length(row) for row in numbers]
            logps = [
                [float(slow_logp(m, made.heldout.tokens[row], made.heldout.start[row])) for row in numbers]
                for m in models_of
            ]
            (chosen, rejected), (chosen_ref, rejected_ref) = logps
            correct["ranking"].append(chosen > rejected)
            correct["ranking_per_token"].append(chosen / lengths[0] > rejected / lengths[1])
            correct["ranking_reference"].append(chosen_ref > rejected_ref)
            share = float(made.heldout.values["chosen_share"][item])
            if share == share:
                odds = share / (1 - share)
                correct["ranking_idealised"].append(chosen_ref - rejected_ref + math.log(odds) / 0.3 > 0)
    assert 5 < len(correct["ranking_idealised"]) < len(made.heldout.items)
    for name, values in correct.items():
        assert result[f"{name}_heldout"] == pytest.approx(sum(values) / len(values)), name
        assert f"| {name} | {sum(values) / len(values):.4f} |" in (made.out / "report/card.md").read_text()
    assert len({round(result[f"{name}_heldout"], 4) for name in correct}) > 2


def test_rankings_without_a_reference_or_shares_are_left_out(pairs, trainer):
    result = trainer(pairs, loss="simpo").run()
    assert "ranking_per_token_heldout" in result
    assert not {"ranking_reference_heldout", "ranking_idealised_heldout"} & result.keys()


@pytest.mark.parametrize("loss", ["kto", "simpo", "orpo", "rpo", "mpo", "bco", "aot", "ld_dpo", "wpo", "cpo", "f_dpo"])
@pytest.mark.few(5)
def test_every_sort_of_loss_goes_through_the_stage(pairs, trainer, loss):
    made = trainer(pairs, loss=loss, steps=30)
    made.run()
    history = [values["loss/train"] for _, values in metrics(made.work)]
    assert sum(history[-5:]) < sum(history[:5])
    assert made.uses_reference == (loss not in ("simpo", "orpo", "cpo"))
    assert ("drift/kl" in metrics(made.work)[-1][1]) == (loss == "kto")


@pytest.mark.parametrize("loss", ["exo", "nca", "sppo", "discopop", {"kind": "aot", "paired": False}], ids=str)
def test_losses_of_dpo_s_columns_go_through_the_stage(pairs, trainer, loss):
    made = trainer(pairs, loss=loss, steps=2)
    made.run()
    assert all(math.isfinite(values["loss/train"]) for _, values in metrics(made.work))


def test_the_reference_follows_the_policy(pairs, trainer, monkeypatch):
    """Scores after two steps are those of the weights then; before that, and without the setting, those of the start."""
    heard = []
    made = trainer(pairs, reference_every=2, steps=4)
    passed = made._pass

    def listening(examples, items, split, **options):
        if split == "train":
            with torch.no_grad():
                own = [
                    slow_logp(made.model, examples.tokens[row], examples.start[row]) for row in examples.items[items[0]]
                ]
            heard.append((torch.stack(own), made.reference["train"][list(examples.items[items[0]])]))
        return passed(examples, items, split, **options)

    monkeypatch.setattr(made, "_pass", listening)
    made.run()
    distances = [float((own - scored).abs().max()) for own, scored in heard]
    assert max(distances[0], distances[2]) < 1e-4 < min(distances[1], distances[3])
    losses = [values["loss/train"] for _, values in metrics(made.work)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4) == losses[2] != pytest.approx(losses[3], abs=1e-5)


def test_a_reference_that_no_loss_reads_cannot_follow():
    with pytest.raises(RecipeError, match="simpo compares with no reference"):
        check_reference(Preference.model_validate({"loss": "simpo", "reference_every": 5, "steps": 9}))
    check_reference(Preference.model_validate({"loss": "bco", "reference_every": 5, "steps": 9}))


@pytest.mark.slow
def test_labelled_answers_are_learned(labels, trainer):
    made = trainer(labels, loss="kto", steps=60)
    result = made.run()
    assert result["accuracy_heldout"] > 0.85
    examples = made.examples
    for item, row in enumerate(examples.unrelated):
        own, start = examples.items[item][0], examples.start[row]
        assert examples.tokens[row][:start] == examples.tokens[own][:start], "the prompt is the item's own"
        assert examples.tokens[row][start:] != examples.tokens[own][start:]


def test_lora_and_bfloat16(pairs, trainer):
    made = trainer(pairs, lora={"rank": 4, "dropout": 0.5}, dtype="bfloat16")
    made.run()
    merged, base = (load_file(f / "model.safetensors") for f in (made.out / "model", pairs / "model"))
    changed = [name for name in merged if not torch.equal(merged[name], base[name])]
    assert changed and all("proj" in name for name in changed)
    other = trainer(pairs, "b", lora={"rank": 4, "dropout": 0.0}, dtype="bfloat16")
    other.run()
    assert all(torch.equal(v, merged[k]) for k, v in load_file(other.out / "model/model.safetensors").items()), (
        "no dropout"
    )
    adapted.check(made.out, pairs / "model", str(pairs / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 5])
def test_an_interrupted_run_ends_with_the_same_bytes(pairs, trainer, monkeypatch, at):
    changes = {"loss": "kto", "checkpoint_selection": "best"}
    trainer(pairs, "whole", **changes).run()
    toys.stop(trainer(pairs, "part", **changes), at)
    again = trainer(pairs, "part", **changes)
    monkeypatch.setattr(again, "_score_all", lambda *args: pytest.fail("the reference was scored again"))
    again.run()
    whole = again.work.parent / "whole"
    assert contents(whole / "out") == contents(again.out)

    def history(work):
        return [(step, values["loss/train"], values.get("loss/heldout")) for step, values in metrics(work)]

    assert history(whole) == history(again.work) and len(history(whole)) == 6


@pytest.mark.slow
def test_a_reference_and_a_mean_that_follow_the_policy_resume(pairs, trainer):
    changes = {"loss": "bco", "reference_every": 2}
    trainer(pairs, "whole", **changes).run()
    toys.stop(trainer(pairs, "part", **changes), 3)
    again = trainer(pairs, "part", **changes)
    again.run()
    assert contents(again.work.parent / "whole/out") == contents(again.out)


def job(begun: Path, folder: Path, **changes) -> list[str]:
    folder.mkdir()
    (folder / "out").mkdir()
    model = Model(path=str(begun / "model"))
    body = {
        "seed": 0, "threads": 1, "settings": {"preference": SETTINGS | changes, "model": model.model_dump()},
        "inputs": {"data": str(begun / "data")},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", "pipelines.preference", str(folder)]


@pytest.mark.slow
def test_sigkill_in_the_stage_changes_no_byte(pairs, tmp_path):
    changes = {"steps": 60, "commit": {"every": 5}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forks.run(job(pairs, whole, **changes), cwd=toys.ROOT, check=True, capture_output=True)
    assert json.loads((whole / "metrics.json").read_text())["steps"] == 60
    command = job(pairs, killed, **changes)
    child = forks.Popen(command, cwd=toys.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while checkpoint.load(killed / "checkpoints") is None or checkpoint.load(killed / "checkpoints")["step"] < 10:
        assert child.poll() is None
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (killed / "metrics.json").exists()
    forks.run(command, cwd=toys.ROOT, check=True, capture_output=True)
    assert contents(whole / "out") == contents(killed / "out")
    assert [step for step, _ in metrics(killed)] == list(range(1, 61))
    resumed = [line for line in toys.spool(killed) if line["kind"] == "event" and "resumed" in line["text"]]
    assert resumed and 10 <= resumed[0]["step"] < 60


def test_only_what_will_be_read_is_scored_with_the_reference(pairs, trainer):
    made = trainer(pairs, steps=2)
    made.begin()
    read = {row for step in range(2) for item in made.epochs.step(step) for row in made.examples.items[item]}
    scored = {row for row, value in enumerate(made.reference["train"].tolist()) if value == value}
    assert scored == read and len(read) == 32
    assert not trainer(pairs, "free", loss="simpo").uses_reference
    assert trainer(pairs, "drift", loss="simpo", track_drift=True).uses_reference


def test_the_best_checkpoint_is_handed_on(pairs, trainer, monkeypatch):
    made = trainer(pairs, checkpoint_selection="best", evaluate_every=2)
    told, weights = iter([2.0, 1.0, 3.0, 1.0]), []

    def measure():
        weights.append(torch.cat([p.detach().flatten().clone() for p in made.model.parameters()]))
        return {"loss/heldout": next(told)}

    monkeypatch.setattr(made, "measure", measure)
    assert made.run()["loss_heldout"] == 1.0
    final = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    assert torch.equal(final, weights[1]) and not torch.equal(final, weights[2])
    assert len(weights) == 4 and torch.equal(final, weights[3]), "what the card tells is measured again"


def test_monitors_stop_the_run(pairs, trainer):
    rule = {"kind": "metric", "metric": "rewards/margin", "above": -1.0, "action": "stop"}
    with pytest.raises(Interrupted, match=r"stopped at step 1 by preference\.monitors"):
        trainer(pairs, monitors=[rule]).run()


def test_passes_hold_every_item_once_within_the_budget(pairs, trainer):
    examples = trainer(pairs).examples
    parts = passes(examples, range(40), 100)
    assert sorted(item for part in parts for item in part) == list(range(40))
    assert all(len(part) == 1 or sum(map(examples.size, part)) <= 100 for part in parts)


@pytest.mark.slow
def test_long_pairs_are_left_out_whole_and_said(pairs, trainer):
    every = trainer(pairs, "a").examples
    longest = max(len(tokens) for tokens in every.tokens)
    made = trainer(pairs, "b", max_length=longest - 1)
    assert max(len(tokens) for tokens in made.examples.tokens) < longest and len(made.examples) < len(every)
    events = [line for line in toys.spool(made.work) if line["kind"] == "event"]
    assert events[0]["rows"] == len(every) - len(made.examples)
    with pytest.raises(DataError, match=r"preference\.max_length: all \d+ rows of train"):
        trainer(pairs, "c", max_length=4)


def test_what_the_data_lack_is_said_with_the_record(labels, trainer, tmp_path):
    with pytest.raises(DataError, match=r"record \w+ .* holds no pair .*select: pairs"):
        trainer(labels, "a")
    unscored = prepare(tmp_path / "unscored", [{**row, "chosen_score": None} for row in rows(30)])
    with pytest.raises(DataError, match=r"preference\.loss: rpo reads chosen_score, and record \w+ has none"):
        trainer(unscored, "b", loss="rpo")


def recipe(tmp_path, **fields):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    stages = {
        "data": {"kind": "curate", "sources": [{"kind": "file", "path": str(tmp_path / "rows.jsonl")}]},
        "dpo": {"kind": "preference", "data": "data", "steps": 3, **fields},
    }
    path = tmp_path / "preference.yaml"
    path.write_text(yaml.safe_dump({"name": "p", "model": {"path": str(tmp_path)}, "stages": stages}, sort_keys=False))
    return read_recipe(path)


@pytest.mark.parametrize(("fields", "words"), [
    ({"loss": "dpoo"}, r"loss: no method called 'dpoo'\. Did you mean 'dpo'"),
    ({"loss": {"kind": "dpo", "betta": 1}}, r"loss\.betta: no such setting\. Did you mean 'beta'"),
    ({"loss": {"kind": "dpo", "beta": -1}}, r"loss\.beta"),
    ({"split": "trein"}, r"split: data makes no split called 'trein'"),
    ({"monitors": [{"kind": "metric", "metric": "acuracy/train", "above": 1}]}, r"monitors\.0\.metric: preference measures no acuracy"),
    ({"monitors": [{"kind": "repetition"}]}, "looks at rollouts, which preference has none of"),
])  # fmt: skip
def test_mistakes_in_the_recipe_name_the_field(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, **fields))


def test_the_key_has_the_code_of_the_chosen_loss_only(tmp_path):
    read = recipe(tmp_path, loss="simpo")
    parts = keys.key_parts(read, "dpo", {"data": "d"})
    losses = {module for module in parts["source"] if module.startswith("pipelines.preference.loss.")}
    assert losses == {"pipelines.preference.loss.simpo"} and "pipelines.preference.run" in parts["source"]
    assert "pipelines.rlvr.train" not in parts["source"]


@pytest.mark.slow
def test_a_base_in_four_bits_is_its_own_reference(pairs, trainer):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
    made = trainer(pairs, lora={"rank": 4, "load_in_4bit": True})
    made.run()
    first = metrics(made.work)[0][1]
    assert first["loss/train"] == pytest.approx(math.log(2), abs=1e-4), "nothing has moved yet"
    assert (made.out / "model/model.safetensors").is_file() and (
        made.out / "adapter/adapter_model.safetensors"
    ).is_file()


@pytest.mark.slow
def test_a_loss_may_read_the_record_s_answer_as_a_third_one(tmp_path, trainer):
    """TPO on triples: the answer becomes likelier; without answers there is nothing to read."""
    written = [row | {"answer": row["chosen"] + "!"} for row in rows(60)]
    begun = prepare(tmp_path / "triples", written)
    loss = {"kind": "tpo", "beta": 0.1}
    made = trainer(begun, loss=loss, steps=12)
    answers = made.examples

    def likelihoods(items):
        """[N, 3]."""
        with torch.no_grad():
            rows = [
                [slow_logp(made.model, answers.tokens[row], answers.start[row]) for row in answers.items[i]]
                for i in items
            ]
        return torch.tensor(rows)

    step, every = made.epochs.step(0), range(len(answers))
    before, first_step = likelihoods(every), likelihoods(step)
    result = made.run()
    assert likelihoods(every)[:, 2].mean() > before[:, 2].mean() and math.isfinite(result["loss_heldout"])
    chosen, rejected, gold = first_step.unbind(1)
    nll = -gold.sum() / sum(answers.length(answers.items[item][2]) for item in step)
    expected = nll - torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
    assert metrics(made.work)[0][1]["loss/train"] == pytest.approx(float(expected), rel=1e-4)
    plain = prepare(tmp_path / "plain", rows(20))
    with pytest.raises(DataError, match="tpo reads a solution beside the two answers"):
        trainer(plain, "plain", loss=loss)
