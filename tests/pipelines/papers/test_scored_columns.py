"""Columns that the scoring hook fills, against the model's own log-probabilities; and runs of what reads them."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import toys
from transformers import AutoModelForCausalLM

from pipelines.data import chat, dataset
from pipelines.data.records import Role
from pipelines.papers.igpo import answer_log_prob

TURNS = ("rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.sampling.max_tokens=6")


def log_probs(model, context, text):
    with torch.no_grad():
        logp = model(torch.tensor([[*context, *text]])).logits[0].float().log_softmax(-1)
    return torch.stack([logp[len(context) - 1 + i, token] for i, token in enumerate(text)])


def filled(made):
    """Rows of a step and their columns with what the providers fill."""
    rows, _ = made.collect(0)
    columns = made.collector.pack(rows, 0, 0)
    made.learner.fill(columns["token"], columns)
    return rows, columns


def model_of(start):
    return AutoModelForCausalLM.from_pretrained(start / "sft/out/model").eval()


def test_prompts_are_scored(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[progrpo]")
    rows, columns = filled(made)
    model = model_of(start)
    for row, values in list(zip(rows, columns["logp_prompt"], strict=True))[::5]:
        first = row.role.index(Role.POLICY)
        torch.testing.assert_close(
            values[1:first], log_probs(model, row.tokens[:1], row.tokens[1:first]), atol=2e-5, rtol=0
        )
        assert values[0].isnan() and values[first:].isnan().all()


def test_the_gold_answer_is_scored_where_each_turn_begins(tmp_path, lake):
    preset = ("presets=[igpo]", "rlvr.providers=[{kind: answer_log_prob, before: go}]", *TURNS)
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *preset)
    rows, columns = filled(made)
    model, encode = model_of(lake), lambda text: made.tokenizer(text, add_special_tokens=False)["input_ids"]
    several = 0
    for row, values in zip(rows, columns["answer_logp"], strict=True):
        answer = encode(made.by_uid[row.uid].answer)
        turns = max(row.turn) + 1
        several += turns > 1
        for turn in range(turns):
            history = row.tokens[: row.turn.index(turn)]
            expected = log_probs(model, [*history, *encode("go")], answer).mean()
            torch.testing.assert_close(values[turn], expected, atol=2e-5, rtol=0)
        assert values[turns:].isnan().all()
    assert several and columns["answer_logp"].shape == columns["turn_state"].shape


def test_an_answer_in_one_turn_has_one_value(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path))
    part = answer_log_prob()
    part.scorer, part.problems = made.learner.scorer, {int(p.uid[:15], 16): p for p in made.problems}
    rows, _ = made.collect(0)
    columns = made.collector.pack(rows, 0, 0)
    part.fill(columns["token"], columns)
    row, model = rows[3], model_of(start)
    answer = made.tokenizer(made.by_uid[row.uid].answer, add_special_tokens=False)["input_ids"]
    expected = log_probs(model, row.tokens[: row.role.index(Role.POLICY)], answer).mean()
    assert columns["answer_logp"].shape == (len(rows), 1)
    torch.testing.assert_close(columns["answer_logp"][3, 0], expected, atol=2e-5, rtol=0)


def test_feedback_is_hidden_token_for_token(tmp_path, lake):
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), "presets=[infopo]", *TURNS, "rlvr.providers=[{kind: feedback_gain, placeholder: x}]"
    )  # fmt: skip
    rows, columns = filled(made)
    model = model_of(lake)
    compared = 0
    for row, values in zip(rows, columns["feedback_gain"], strict=True):
        last = max(row.turn)
        for turn in range(last):
            start = len(row.turn) - row.turn[::-1].index(turn)
            end = row.turn.index(turn + 1)
            text = [token for token, number in zip(row.tokens, row.turn, strict=True) if number == turn + 1]
            feedback = row.tokens[start:end]
            wrapped = chat.reply_tokens(
                made.tokenizer, "x", with_end=row.tokens[start - 1] != made.tokenizer.eos_token_id
            )
            mark = made.tokenizer("x", add_special_tokens=False)["input_ids"]
            at = wrapped.index(mark[0])
            size = len(feedback) - (len(wrapped) - 1)
            hidden = [*row.tokens[:start], *wrapped[:at], *mark * size, *wrapped[at + 1 :]]
            assert len(hidden) == end, "nothing moves"
            real = log_probs(model, row.tokens[:end], text).mean()
            torch.testing.assert_close(values[turn], real - log_probs(model, hidden, text).mean(), atol=5e-5, rtol=0)
            compared += 1
        assert values[last:].isnan().all()
    assert compared


def test_feedback_that_is_the_placeholder_tells_nothing(tmp_path, lake):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), "presets=[infopo]", *TURNS)
    rows, _ = made.collect(0)
    row = next(row for row in rows if max(row.turn) > 0)
    start, end = len(row.turn) - row.turn[::-1].index(0), row.turn.index(1)
    reply = chat.reply_tokens(
        made.tokenizer, "No information found.", with_end=row.tokens[start - 1] != made.tokenizer.eos_token_id
    )
    fields = {name: getattr(row, name) for name in ("role", "logp_old", "turn")}
    for name, filler in (("tokens", None), ("role", int(Role.ENVIRONMENT)), ("logp_old", 0.0), ("turn", -1)):
        old = row.tokens if name == "tokens" else fields[name]
        setattr(row, name, [*old[:start], *(reply if filler is None else [filler] * len(reply)), *old[end:]])
    columns = made.collector.pack([row], 0, 0)
    made.learner.fill(columns["token"], columns)
    assert columns["feedback_gain"][0, 0] == 0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_context_is_masked_and_the_question_is_not(tmp_path, start, temperature, monkeypatch):
    def with_letters(problem):
        letters = problem.prompt[-1]["content"].removeprefix("palindrome ")
        return dataclasses.replace(problem, info=problem.info | {"metadata": {"letters": letters}})

    read = dataset.read_split
    monkeypatch.setattr(dataset, "read_split", lambda *args: [with_letters(problem) for problem in read(*args)])
    context = "rlvr.providers=[{kind: masked_context, field: metadata.letters, unit: character, share: %s, mark: x}]"
    made = toys.trainer(
        tmp_path,
        start,
        toys.recipe(tmp_path),
        "presets=[papo]",
        f"rlvr.sampling.temperature={temperature}",
        context % 0.5,
    )
    provider = made.learner.providers["masked_context"]
    rows, columns = filled(made)
    model = model_of(start)
    changed = 0
    for row, values in zip(rows, columns["logp_masked"], strict=True):
        own, twin = provider._prompts(made.by_uid[row.uid], 0)
        first = row.role.index(Role.POLICY)
        assert own == row.tokens[:first] and len(twin) == len(own)
        text = made.tokenizer.decode(twin)
        assert "palindrome " in text
        changed += own != twin
        with torch.no_grad():
            logits = model(torch.tensor([[*twin, *row.tokens[first:]]])).logits[0].float() / temperature
        expected = [logits[i - 1].log_softmax(-1)[row.tokens[i]] for i in range(first, len(row.tokens))]
        torch.testing.assert_close(values[first : len(row.tokens)], torch.stack(expected), atol=2e-5, rtol=0)
    assert changed
    provider.share = 0.0
    again = dict(columns)
    provider.fill(columns["token"], again)
    mask = columns["mask"]
    torch.testing.assert_close(again["logp_masked"][mask], columns["logp_old"][mask], atol=1e-4, rtol=0)
    provider.field = "metadata.numbers"
    provider.fill(columns["token"], again)
    assert again["logp_masked"].isnan().all()


def test_a_language_model_s_scores_telescope(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[lm_reward]")
    rows, columns = filled(made)
    model = model_of(start)
    for row, values in list(zip(rows, columns["process_reward"], strict=True))[::5]:
        first = row.role.index(Role.POLICY)
        with torch.no_grad():
            logits = model(torch.tensor([row.tokens])).logits[0].float()
        q = logits - logits.mean(-1, keepdim=True)
        expected = [
            q[i - 1, row.tokens[i]] - (q[i].max() if i + 1 < len(row.tokens) else 0.0) for i in range(first, len(row.tokens))
        ]  # fmt: skip
        torch.testing.assert_close(values[first : len(row.tokens)], torch.stack(expected), atol=1e-4, rtol=0)
        loss_of_choice = sum(q[i - 1].max() - q[i - 1, row.tokens[i]] for i in range(first + 1, len(row.tokens)))
        assert float(values.sum()) == pytest.approx(float(q[first - 1, row.tokens[first]] - loss_of_choice), abs=1e-3)


@pytest.mark.parametrize("preset", ["igpo", "infopo", "reward_cashing", "aem", "aspo", "starpo_s"])
def test_agents_train(tmp_path, lake, preset):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), f"presets=[{preset}]", *TURNS)
    before = [p.detach().clone() for p in made.learner.model.parameters()]
    metrics = made.run()
    assert metrics["steps"] == 3
    assert any(not torch.equal(a, b) for a, b in zip(before, made.learner.model.parameters(), strict=True))


@pytest.mark.parametrize("preset", ["papo", "listener"])
def test_a_run_broken_off_ends_in_the_same_bytes(tmp_path, start, preset):
    more = (f"presets=[{preset}]", "rlvr.commit.every=1", "rlvr.steps=3", "rlvr.prompts=8")
    weights = []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        made = toys.trainer(folder, start, toys.recipe(folder), *more)
        if name == "stopped":
            toys.stop(made, 1, "update")
            made = toys.trainer(folder, start, toys.recipe(folder), *more)
        made.run()
        weights.append(torch.cat([p.detach().flatten() for p in made.learner.model.parameters()]))
        lines = [json.loads(line) for line in (folder / "work/spool.jsonl").read_text().splitlines()]
        assert sum(line["kind"] == "metrics" for line in lines) == 3
    assert torch.equal(*weights)
