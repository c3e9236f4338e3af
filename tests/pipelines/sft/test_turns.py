"""Marked turns and weighted spans: the tokens that are trained and what they weigh, against transformers' own loss."""

from __future__ import annotations

import json

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.data import dataset
from pipelines.data.records import TURN_WEIGHTS, Problem
from pipelines.engine.models import train_tokenizer
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from pipelines.recipe.spans import Span
from pipelines.sft.pack import document, token_weights
from pipelines.sft.run import Trainer
from pipelines.sft.turns import turn_parts
from pipelines.stage.report import Report

TOKENIZERS = {
    kind: train_tokenizer(
        kind, 300, ["<think>why not</think> <action>go up</action> the ünïcode way " * 3, "abcdefgh ijklmnop"]
    )
    for kind in ("char", "bpe")
}
SOURCE = Source(kind="file", path="x.jsonl", verifier="exact", columns={"answer": "gold"})


def said(*turns: tuple[str, dict]) -> Problem:
    """A conversation: user and assistant in turn, what the assistant's messages hold beside their content."""
    messages = []
    for text, marks in turns:
        messages += [
            {"role": "user", "content": "abc"},
            {"role": "assistant", "content": text, **marks},
        ]
    return to_problem({"messages": messages, "gold": "x"}, SOURCE, self_check=False)


def trained(made, tokenizer) -> str:
    return tokenizer.decode([token for token, kept in zip(made.tokens, made.mask(), strict=True) if kept])


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_marked_turns_are_left_out(kind):
    tokenizer = TOKENIZERS[kind]
    problem = said(("go", {}), ("up", {"train": False}), ("hi", {"weight": 1}))
    assert problem.info[TURN_WEIGHTS] == [1.0, 0.0, 1.0]
    assert trained(document(problem, "auto", tokenizer, "marked"), tokenizer) == "go<|end|>hi<|end|>"
    assert trained(document(problem, "auto", tokenizer, "all"), tokenizer) == "go<|end|>up<|end|>hi<|end|>"
    assert trained(document(problem, "auto", tokenizer, "last"), tokenizer) == "hi<|end|>"
    last = said(("go", {"weight": 0.5}), ("up", {"training": False}))
    made = document(last, "auto", tokenizer, "marked")
    assert trained(made, tokenizer) == "go<|end|>" and made.trained_weight == 0.5 * made.trained_count
    none = document(said(("go", {"weight": 0}), ("up", {"weight": 0.0})), "auto", tokenizer, "marked")
    assert none.trained_count == 0 and not none.mask().any() and none.trained_weight == 0
    unmarked = said(("go", {}), ("up", {}))
    assert TURN_WEIGHTS not in unmarked.info
    assert document(unmarked, "auto", tokenizer, "marked") == document(unmarked, "auto", tokenizer, "all")


def test_of_several_answers_at_the_end_the_mark_of_the_last_one_counts():
    """Those before it are in no prompt."""
    row = {
        "messages": [
            {"role": "user", "content": "abc"},
            {"role": "assistant", "content": "go", "train": False},
            {"role": "assistant", "content": "up", "train": True},
        ],
        "gold": "x",
    }
    assert to_problem(row, SOURCE, self_check=False).info[TURN_WEIGHTS] == [1.0]
    split = {
        "prompt": [{"role": "user", "content": "abc"}],
        "completion": [{"role": "assistant", "content": "up", "train": False}],
        "gold": "x",
    }
    assert to_problem(split, SOURCE, self_check=False).info[TURN_WEIGHTS] == [0.0]


@pytest.mark.parametrize("mark", [{"train": 1}, {"training": "no"}, {"weight": -1}, {"weight": True}, {"weight": "1"}])
def test_marks_that_mean_nothing_cost_the_row(mark):
    with pytest.raises(RowError, match=next(iter(mark))):
        said(("go", mark))


def test_a_record_with_more_weights_than_turns_is_refused():
    problem = said(("go", {}), ("up", {"train": False}))
    problem.info[TURN_WEIGHTS].append(1.0)
    with pytest.raises(DataError, match=r"has 2 messages of the assistant and info\.turn_weights 3"):
        document(problem, "auto", TOKENIZERS["char"], "marked")


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6)
)
def test_turn_parts_cover_exactly_the_trained_turns(shape):
    places, wanted, position = [], [], 0
    for before, length, weight in shape:
        places.append((position + before, position + before + length))
        wanted += [0.0] * before + [weight] * length
        position += before + length
    start, untrained, parts = turn_parts(places, [weight for *_, weight in shape], position)
    mask = [start <= i and not any(a <= i < b for a, b in untrained) for i in range(position)]
    assert mask == [weight > 0 for weight in wanted]
    assert [w for a, b, w in parts for _ in range(a, b)] == [weight for weight in wanted if weight]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_action_tokens_weigh_more_than_reasoning(kind):
    tokenizer = TOKENIZERS[kind]
    text = "<think>why not</think> <action>go up</action>"
    problem = said((text, {}))
    spans = [Span(after="</think>", weight=0.5), Span(tag="action", weight=3)]
    made = document(problem, "auto", tokenizer, spans=spans)
    weights = made.token_weights()[made.mask()].tolist()
    tokens = [token for token, kept in zip(made.tokens, made.mask(), strict=True) if kept]
    of_weight = {
        w: tokenizer.decode([t for t, own in zip(tokens, weights, strict=True) if own == w]) for w in (1, 0.5, 3)
    }
    if kind == "char":
        assert of_weight == {1: "<think>why not</think>", 0.5: " <|end|>", 3: "<action>go up</action>"}
    assert "<action>go up</action>" in of_weight[3] and "why" in of_weight[1] and "<|end|>" in of_weight[0.5]
    assert made.trained_weight == pytest.approx(sum(weights))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(TOKENIZERS)),
    st.text("gopu ünï</think>", min_size=1, max_size=12),
    st.text("gopu ünï", min_size=1, max_size=12),
)
def test_a_span_holds_every_token_of_its_text_and_no_others(kind, before, inside):
    """Whatever the tokenizer does at its ends, and with characters of several bytes."""
    tokenizer = TOKENIZERS[kind]
    problem = said((f"{before}<action>{inside}</action> go", {}))
    [part] = document(problem, "auto", tokenizer, spans=[Span(tag="action", weight=2)]).factors
    made = document(problem, "auto", tokenizer)
    start, end, _ = part
    wanted = f"<action>{inside}</action>"
    assert wanted in tokenizer.decode(made.tokens[start:end])
    for shorter in (made.tokens[start + 1 : end], made.tokens[start : end - 1]):
        assert wanted not in tokenizer.decode(shorter)


def data_of(folder, problems):
    from pipelines.data.dataset import Writer

    folder.mkdir()
    for split in ("train", "heldout"):
        writer = Writer(folder / f"{split}.parquet", 100)
        for problem in problems:
            writer.add(problem)
        writer.close()
    tokenizer = TOKENIZERS["char"]
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "data.json").write_text(json.dumps({}))
    return folder


def stage(tmp_path, data, *overrides):
    recipe = read_recipe(toys.recipe(tmp_path), list(overrides))
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    report = Report(work, committed=True)
    return Trainer(recipe.sft, recipe.model, data=data, out=work / "out", work=work, report=report, seed=0)


def test_the_loss_of_a_step_is_that_of_transformers_with_labels_and_weights(tmp_path, monkeypatch):
    """One batch with -100 where nothing is trained, as TRL's collator writes labels; then with weights, token by token."""
    problems = [said(("go", {"train": False}), ("up", {}), ("hi" * n, {"weight": 2})) for n in range(1, 6)]
    data = data_of(tmp_path / "data", problems)
    for weights in (False, True):
        folder = tmp_path / str(weights)
        folder.mkdir()
        spans = ["sft.spans=[{after: h, weight: 3}]"] if weights else []
        if not weights:
            for problem in problems:
                problem.info[TURN_WEIGHTS] = [0.0, 1.0, 1.0]
            data = data_of(folder / "data", problems)
        else:
            data = tmp_path / "data"
        made = stage(folder, data, "sft.turns=marked", *spans)
        taken = []

        def keep(step, made=made, taken=taken):
            taken.append(torch.cat([p.grad.flatten().clone() for p in made.model.parameters()]))
            return {}

        monkeypatch.setattr(made.stepper, "step", keep)
        metrics = made.make_step(0)
        made.model.zero_grad()
        documents = [made.documents[i] for row in made.step_rows(0) for i in row]
        width = max(len(doc.tokens) for doc in documents)
        ids = torch.zeros(len(documents), width, dtype=torch.int64)
        labels, factors = torch.full_like(ids, -100), torch.zeros(ids.shape)
        attention = torch.zeros_like(ids)
        for row, doc in enumerate(documents):
            n = len(doc.tokens)
            ids[row, :n] = torch.tensor(doc.tokens)
            attention[row, :n] = 1
            labels[row, :n] = torch.where(torch.from_numpy(doc.mask()), ids[row, :n], -100)
            factors[row, :n] = torch.from_numpy(doc.token_weights())
        said_of = made.model(ids, attention_mask=attention, labels=labels)
        if weights:
            logp = said_of.logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
            own = (factors * (labels != -100))[:, 1:]
            assert {1.0, 6.0} < set(own[own > 0].tolist()) | {1.0}
            loss = -(logp * own).sum() / own.sum()
        else:
            loss = said_of.loss
        loss.backward()
        oracle = torch.cat([p.grad.flatten() for p in made.model.parameters()])
        assert metrics["loss/train"] == pytest.approx(loss.item(), rel=1e-5)
        torch.testing.assert_close(taken[0], oracle, atol=1e-5, rtol=1e-3)


def test_conversations_without_a_trained_turn_are_dropped_and_all_of_them_refused(tmp_path):
    marked = said(("go", {"train": False}))
    data = data_of(tmp_path / "some", [marked, said(("up", {}))])
    assert len(stage(tmp_path, data, "sft.turns=marked").documents) == 1
    data = data_of(tmp_path / "all", [marked])
    with pytest.raises(DataError, match=r"sft\.turns: the data mark every message"):
        stage(tmp_path, data, "sft.turns=marked")


@pytest.mark.parametrize("span", ["{weight: 1}", "{tag: a, after: b, weight: 1}", "{tag: a}", "{tag: a, weight: -1}"])
def test_a_span_that_says_nothing_or_too_much_is_refused(tmp_path, span):
    with pytest.raises(RecipeError, match=r"sft\.spans"):
        read_recipe(toys.recipe(tmp_path), [f"sft.spans=[{span}]"])


def test_weights_of_a_row_stand_where_its_tokens_are(tmp_path):
    problems = [said(("<think>go</think> up", {})), said(("hi", {}))]
    data = data_of(tmp_path / "data", problems)
    made = stage(tmp_path, data, "sft.spans=[{after: </think>, weight: 4}]")
    rows = [[1, 0]]
    flat = token_weights(made.documents, rows)
    assert flat.tolist() == [w for i in (0, 1) for w in made.documents[i].token_weights().tolist()]
    assert set(flat.tolist()) == {1.0, 4.0}
    assert {w for doc in made.heldout for w in doc.token_weights().tolist()} == {1.0}, "held-out loss stays comparable"
    assert dataset.read_split(data, "train")[0].prompt == problems[0].prompt


def test_the_calls_of_an_agent_weigh_more():
    """GUI-Libra's action tokens as text: in every turn that has a call, and in no tool's reply."""
    from pipelines.environments.tools import problems

    tokenizer = train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    [row] = problems(1, 1, demonstrations=True, conversations=True)
    problem = Problem(uid="u", source="s", licence="l", **row)
    made = document(problem, "auto", tokenizer, "all", [Span(tag="tool_call", weight=2)])
    weights = made.token_weights()
    heavy = tokenizer.decode([t for t, w in zip(made.tokens, weights, strict=True) if w == 2])
    assert heavy == problem.prompt[1]["content"].strip() and "</tool_call>" in heavy
    assert set(weights[made.mask()].tolist()) == {1.0, 2.0}


def test_a_record_with_nothing_to_learn_is_refused():
    row = {"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "go"}]}
    chat = to_problem(row, Source(kind="file", path="x.jsonl"), self_check=True)
    assert trained(document(chat, "auto", TOKENIZERS["char"]), TOKENIZERS["char"]) == "go<|end|>"
    with pytest.raises(DataError, match=r"has no answer, only a solution; use target: auto"):
        document(chat, "answer", TOKENIZERS["char"])
    pair = {"prompt": "abc", "chosen": "go", "rejected": "up"}
    with pytest.raises(DataError, match="has neither solution nor answer"):
        document(
            to_problem(pair, SOURCE.model_copy(update={"columns": {}}), self_check=True), "auto", TOKENIZERS["char"]
        )
