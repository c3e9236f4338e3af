"""SFT: packing leaks nothing, the loss is the assistant's, layouts agree, a killed run ends with the same bytes."""

from __future__ import annotations

import hashlib
import json

import adapted
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, ModelError, RecipeError
from pipelines.base.files import read_json
from pipelines.data import dataset
from pipelines.data.records import Problem
from pipelines.engine.layout import best_fit
from pipelines.engine.models import train_tokenizer
from pipelines.sft.pack import check_assistant_mask, document, epoch_rows, micro_batches


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 50))
def test_best_fit_packs_everything_once(lengths, size):
    rows = best_fit(lengths, size)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= size for row in rows)
    assert len(rows) <= 2 * -(-sum(lengths) // size)


def problem(prompt, answer, **info):
    return Problem(
        uid=prompt,
        prompt=[{"role": "user", "content": prompt}],
        answer=answer,
        verifier="exact",
        source="s",
        licence="x",
        info=info,
    )


def test_loss_is_on_the_assistants_tokens_only():
    tokenizer = train_tokenizer("char", 64, ["abc=def"])
    made = document(problem("abc=", "def"), "auto", tokenizer)
    assert tokenizer.decode(made.tokens[made.trained_from :]) == "def<|end|>"
    assert check_assistant_mask(problem("abc=", "def"), "auto", tokenizer)
    assert (
        tokenizer.decode(document(problem("abc=", "d", solution="fed"), "auto", tokenizer).tokens[-4:]) == "fed<|end|>"
    )


def test_template_that_rewrites_the_prompt_is_refused():
    tokenizer = train_tokenizer("char", 64, ["abc=def"])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    with pytest.raises(ModelError, match="not a prefix"):
        document(problem("abc", "def"), "auto", tokenizer)


def test_packed_rows_give_the_loss_of_separate_ones(tmp_path, data):
    made = toys.sft_trainer(tmp_path, data)
    rows = epoch_rows(made.documents, 64, True, 0, 0)[:3]
    assert any(len(row) > 1 for row in rows)

    def gradient(rows, budget):
        made.model.zero_grad()
        for layout, targets in micro_batches(made.documents, rows, budget):
            made.policy.score(layout, targets)[0].sum().backward()
        return torch.cat([p.grad.flatten() for p in made.model.parameters()])

    made.model.zero_grad()
    for row in rows:
        for i in row:
            tokens = torch.tensor([made.documents[i].tokens])
            mask = torch.arange(tokens.shape[1])[None] >= max(1, made.documents[i].trained_from)
            made.policy.logp(tokens, mask).logp.sum().backward()
    oracle = torch.cat([p.grad.flatten() for p in made.model.parameters()])
    for budget in (64, 10_000):
        torch.testing.assert_close(gradient(rows, budget), oracle, atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(gradient([[i] for row in rows for i in row], budget), oracle, atol=2e-4, rtol=1e-3)


def bytes_of(folder):
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def history(work):
    lines = [json.loads(line) for line in (work / "spool.jsonl").read_text().splitlines()]
    return [(b["step"], b["values"]["loss/train"]) for b in lines if b["kind"] == "metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 4, 7, 11])
@pytest.mark.few(2)
def test_interrupted_run_ends_with_the_same_bytes(tmp_path, data, at):
    whole = toys.sft_trainer(tmp_path / "a", data) if (tmp_path / "a").mkdir() is None else None
    whole.run()
    (tmp_path / "b").mkdir()
    toys.run_stopped(lambda: toys.sft_trainer(tmp_path / "b", data), at, None)
    assert bytes_of(tmp_path / "a/work/out") == bytes_of(tmp_path / "b/work/out")
    assert history(tmp_path / "a/work") == history(tmp_path / "b/work")
    assert [s for s, _ in history(tmp_path / "b/work")] == list(range(1, 13))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_it_learns_in_bfloat16(tmp_path, data, weights):
    made = toys.sft_trainer(tmp_path, data, "sft.steps=40", "model.dtype=bfloat16", f"model.weights_dtype={weights}")
    before = made.heldout_loss()
    assert made.run()["loss_heldout"] < before - 0.4


def test_it_learns_and_saves_a_loadable_folder(tmp_path, data):
    made = toys.sft_trainer(tmp_path, data, "sft.steps=40")
    before = made.heldout_loss()
    numbers = made.run()
    assert numbers["loss_heldout"] < before - 0.4
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "work/out/model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template and model.config.vocab_size == len(tokenizer)
    assert read_json(folder / "whetstone.json")["stage"] == "sft"


def test_lora_is_merged_and_unpacked_rows_work(tmp_path, data):
    made = toys.sft_trainer(
        tmp_path, data, "sft.lora={rank: 4}", "sft.packing=false", "sft.steps=6", "model.dtype=bfloat16"
    )
    made.run()
    from transformers import AutoModelForCausalLM

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "work/out/model")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "work/out/base")
    assert not any("lora" in n for n, _ in merged.named_parameters())
    changed = [
        n for (n, a), b in zip(merged.named_parameters(), base.parameters(), strict=True) if not torch.equal(a, b)
    ]
    assert changed and all("proj" in n for n in changed)


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["true", "4", "{rank: 4, use_dora: true}", "{rank: 4, use_rslora: true}"])
def test_adapters_are_kept_beside_the_model_that_they_are_merged_into(tmp_path, data, lora):
    made = toys.sft_trainer(tmp_path, data, f"sft.lora={lora}", "sft.steps=12", "sft.optimizer.learning_rate=0.01")
    before = made.heldout_loss()
    assert made.run()["loss_heldout"] < before - 0.05
    adapted.check(tmp_path / "work/out", tmp_path / "work/out/base", "../base")


def test_without_lora_there_is_no_adapter(tmp_path, data):
    toys.sft_trainer(tmp_path, data, "sft.lora=false", "sft.steps=1").run()
    assert {p.name for p in (tmp_path / "work/out").iterdir()} >= {"model", "base"}
    assert not (tmp_path / "work/out/adapter").exists()


def test_gradient_that_is_not_finite_is_skipped_then_stops(tmp_path, data):
    from pipelines.base.errors import Interrupted

    made = toys.sft_trainer(tmp_path, data, "sft.max_bad_steps=2")
    with torch.no_grad():
        made.model.get_input_embeddings().weight[:] = float("nan")
    with pytest.raises(Interrupted, match="not finite 2 times in a row"):
        made.run()


def one_step(made, monkeypatch):
    """Gradients of the first step, and what it reported."""
    taken = []

    def keep(step):
        taken.append(torch.cat([p.grad.flatten().clone() for p in made.model.parameters()]))
        return {}

    monkeypatch.setattr(made.stepper, "step", keep)
    return made.make_step(0), taken[0]


def test_the_loss_is_the_mean_over_the_step_s_answer_tokens(tmp_path, data, monkeypatch):
    """However the step is cut into micro-batches; against a loop over conversations with transformers' own forward."""
    losses = []
    for budget in (64, 512):
        (tmp_path / str(budget)).mkdir()
        made = toys.sft_trainer(tmp_path / str(budget), data, f"sft.micro_batch_tokens={budget}")
        numbers, gradient = one_step(made, monkeypatch)
        losses.append((numbers["loss/train"], gradient))
    made.model.zero_grad()
    nats, count = torch.zeros(()), 0
    for i in (i for row in made.step_rows(0) for i in row):
        doc = made.documents[i]
        tokens = torch.tensor([doc.tokens])
        logp = made.model(tokens).logits.float().log_softmax(-1)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0]
        nats, count = nats - logp[doc.trained_from - 1 :].sum(), count + len(doc.tokens) - doc.trained_from
    (nats / count).backward()
    oracle = torch.cat([p.grad.flatten() for p in made.model.parameters()])
    assert numbers["tokens/trained"] == count
    for value, gradient in losses:
        assert value == pytest.approx(nats.item() / count, rel=1e-4)
        torch.testing.assert_close(gradient, oracle, atol=1e-5, rtol=1e-3)


def test_heldout_loss_is_per_token_and_of_the_heldout_split(tmp_path, data):
    made = toys.sft_trainer(tmp_path, data, "sft.micro_batch_tokens=64")
    nats, count = 0.0, 0
    with torch.no_grad():
        for doc in made.heldout:
            tokens = torch.tensor([doc.tokens])
            logp = made.model(tokens).logits.float().log_softmax(-1)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0]
            nats, count = nats - float(logp[doc.trained_from - 1 :].sum()), count + len(doc.tokens) - doc.trained_from
    assert made.heldout_loss() == pytest.approx(nats / count, rel=1e-4)
    assert not {tuple(d.tokens) for d in made.heldout} & {tuple(d.tokens) for d in made.documents}


def test_every_epoch_reads_every_conversation_once_in_an_order_of_its_own(tmp_path, data):
    made = toys.sft_trainer(tmp_path, data, "sft.packing=false")
    each, per_step = len(made.documents), made._rows_per_step()
    rows = [i for step in range(2 * each // per_step + 1) for (i,) in made.step_rows(step)]
    first, second = rows[:each], rows[each : 2 * each]
    assert sorted(first) == sorted(second) == list(range(each)) and first != second
    again = toys.sft_trainer(tmp_path, data, "sft.packing=false")
    assert again.step_rows(3) == made.step_rows(3), "a step's rows depend on no step before it"


def test_the_best_checkpoint_is_handed_on(tmp_path, data, monkeypatch):
    made = toys.sft_trainer(
        tmp_path, data, "sft.checkpoint_selection=best", "sft.evaluate_every=3", "sft.optimizer.schedule=constant"
    )
    told = iter([2.0, 1.0, 3.0, 4.0])
    kept = []

    def measure():
        kept.append(torch.cat([p.detach().flatten().clone() for p in made.model.parameters()]))
        return next(told)

    monkeypatch.setattr(made, "heldout_loss", measure)
    numbers = made.run()
    assert numbers["loss_heldout"] == 1.0
    final = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    assert torch.equal(final, kept[1]) and not torch.equal(final, kept[3])


def test_long_conversations_are_dropped_whole(tmp_path, data):
    every = toys.sft_trainer(tmp_path, data).documents
    limit = max(len(d.tokens) for d in every) - 1
    fitting = toys.sft_trainer(tmp_path, data, f"sft.max_length={limit}").documents
    assert fitting == [d for d in every if len(d.tokens) <= limit] and len(fitting) < len(every)


def test_every_turn_of_an_agent_is_trained_and_nobody_else_s():
    from pipelines.environments.tools import problems
    from pipelines.sft.pack import document

    tokenizer = train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    [row] = problems(1, 1, demonstrations=True, conversations=True)
    problem = Problem(uid="u", source="s", licence="l", **row)
    made = document(problem, "auto", tokenizer, "all")
    call, reply = problem.prompt[1]["content"], problem.prompt[2]["content"]
    [(start, end)] = made.untrained
    assert tokenizer.decode(made.tokens[made.trained_from : start]) == f"{call}<|end|>"
    assert tokenizer.decode(made.tokens[start:end]) == f"<|tool|>{reply}<|assistant|>"
    assert tokenizer.decode(made.tokens[end:]) == f"{problem.info['solution']}<|end|>"
    [(_, targets)] = micro_batches([made], [[0]], 4096)
    kept = [*made.tokens[made.trained_from : start], *made.tokens[end:]]
    assert targets.tolist() == kept and made.untrained_count == end - start
    last = document(problem, "auto", tokenizer)
    assert last.tokens == made.tokens and last.trained_from == end and last.untrained == ()


def test_a_template_that_changes_earlier_answers_refuses_to_train_them():
    from pipelines.sft.pack import document

    tokenizer = train_tokenizer("char", 64, ["abc=def"])
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message['content'] + eos_token", "('' if loop.last else 'a') + message['content'] + eos_token"
    )
    asked = [
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": "def"},
        {"role": "user", "content": "c"},
    ]
    problem = Problem(uid="u", source="s", licence="l", prompt=asked, answer="b", verifier="exact")
    assert document(problem, "auto", tokenizer).untrained == ()
    with pytest.raises(ModelError, match="Use turns: last"):
        document(problem, "auto", tokenizer, "all")
    tokenizer.chat_template = tokenizer.chat_template.replace("'a') + message['content']", "'a')")
    with pytest.raises(ModelError, match=r"does not show message 2 \(assistant\)"):
        document(problem, "auto", tokenizer)


def test_weights_of_sources_and_records(tmp_path, data, monkeypatch):
    """The weighted mean over the step's trained tokens, however it is cut; against a loop over conversations."""
    problems = dataset.read_split(data, "train")
    source = problems[0].source
    for number, problem in enumerate(problems):
        problem.info["trust"] = (number % 3) / 2
    monkeypatch.setattr(dataset, "read_split", lambda folder, split, **options: problems)
    results = []
    for budget in (64, 512):
        (tmp_path / str(budget)).mkdir()
        weighted = ["sft.weight_from=trust", f"sft.weights={{{source}: 2.0}}", f"sft.micro_batch_tokens={budget}"]
        made = toys.sft_trainer(tmp_path / str(budget), data, *weighted)
        assert [d.weight for d in made.documents[:3]] == [0.0, 1.0, 2.0] and {d.weight for d in made.heldout} == {1.0}
        numbers, gradient = one_step(made, monkeypatch)
        results.append((numbers["loss/train"], gradient))
    made.model.zero_grad()
    nats, total = torch.zeros(()), 0.0
    for i in (i for row in made.step_rows(0) for i in row):
        doc = made.documents[i]
        tokens = torch.tensor([doc.tokens])
        logp = made.model(tokens).logits.float().log_softmax(-1)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0]
        nats = nats - doc.weight * logp[doc.trained_from - 1 :].sum()
        total += doc.weight * (len(doc.tokens) - doc.trained_from)
    (nats / total).backward()
    oracle = torch.cat([p.grad.flatten() for p in made.model.parameters()])
    for value, gradient in results:
        assert value == pytest.approx(nats.item() / total, rel=1e-4)
        torch.testing.assert_close(gradient, oracle, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sft.weight_from=trust", r"sft\.weight_from: record \w+ .* has None in info\.trust"),
        (
            "sft.weights={palindrom: 2}",
            r"sft\.weights: train has no records? of (a|the) source 'palindrom'\. Did you mean",
        ),
    ],
)
def test_weights_that_do_not_fit_the_data_are_refused(tmp_path, data, override, words):
    with pytest.raises((DataError, RecipeError), match=words):
        toys.sft_trainer(tmp_path, data, override)


@pytest.mark.slow
def test_adapters_beside_a_base_in_four_bits(tmp_path, data):
    """It learns, a restart ends with the same bytes, and what is published is the dequantised base with the adapters."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
    changes = ["sft.lora={rank: 4, load_in_4bit: true}", "sft.steps=12", "sft.optimizer.learning_rate=0.01"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    made = toys.sft_trainer(whole, data, *changes)
    before = made.heldout_loss()
    assert made.run()["loss_heldout"] < before - 0.05
    toys.run_stopped(lambda: toys.sft_trainer(broken, data, *changes), 7, None)
    models = [(folder / "work/out/model/model.safetensors").read_bytes() for folder in (whole, broken)]
    assert models[0] == models[1]
    assert (whole / "work/out/adapter/adapter_model.safetensors").is_file()
    from transformers import AutoModelForCausalLM

    published, base = (AutoModelForCausalLM.from_pretrained(whole / "work/out" / each) for each in ("model", "base"))
    assert [p.shape for p in published.parameters()] == [p.shape for p in base.parameters()]
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.isfinite(published(ids).logits).all() and published.dtype == torch.float32
