"""A judge that runs here: replies of a real model, what does not fit, the reward, the graph, the command."""

from __future__ import annotations

import json

import pytest
import toys
import yaml
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.data import chat
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.engine.chat_model import ChatModel
from pipelines.judges.local import LocalJudge
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from tasks import keys

UID = "a" * 32
PROBLEM = Problem(
    uid=UID, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="s", licence="l"
)


class Scripted:
    """Answers by a rule, and notes what it was asked."""

    def __init__(self, rule):
        self.rule, self.asked = rule, []

    def reply(self, conversations, *, temperature, max_tokens, sample=0):
        self.asked += conversations
        return [(self.rule(conversation), 7) for conversation in conversations]


def by_length(conversation):
    text = conversation[1]["content"].split(" answer\n")[-1].split("\n===")[0]
    return None if text == "long" else f"Grade: {min(10, len(text))}"


class Lender:
    def __init__(self, model):
        self.model, self.paths = model, []

    def language_model(self, path):
        self.paths.append(path)
        return self.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("judge")
    letters = [chr(i) for i in range(32, 127)]
    tokenizer = models.train_tokenizer("char", 200, ["".join(letters)])
    models.save_model(toys.model(vocab=len(tokenizer)), tokenizer, out, {})
    return out


def settings(folder):
    return Model.model_validate({"path": str(folder)})


def test_replies_are_the_model_s_own_and_do_not_depend_on_company(folder):
    model = ChatModel(str(folder), settings(folder))
    ask = [[{"role": "user", "content": text}] for text in ("a", "bb", "a")]
    greedy = model.reply(ask, temperature=0.0, max_tokens=5)
    assert greedy[0] == greedy[2] and [model.reply([q], temperature=0.0, max_tokens=5)[0] for q in ask] == greedy
    prompts = chat.render_prompts(model.tokenizer, ask)
    tokens = toys.greedy(model.sampler.model, list(prompts[1]), 5)
    assert chat.completion_text(model.tokenizer, list(tokens)).startswith(greedy[1][0])
    drawn = model.reply(ask, temperature=1.0, max_tokens=5)
    assert drawn[0] == drawn[2] == model.reply(ask[:1], temperature=1.0, max_tokens=5)[0]
    assert model.reply([], temperature=0.0, max_tokens=5) == []
    others = [model.reply(ask, temperature=1.0, max_tokens=5, sample=number) for number in range(4)]
    assert others[0] == drawn and len({str(other) for other in others}) == 4, "each draw has replies of its own"


def test_what_does_not_fit_has_no_reply(folder):
    model = ChatModel(str(folder), settings(folder))
    long = [{"role": "user", "content": "x" * (model.sampler.context + 1)}]
    assert model.reply([long], temperature=0.0, max_tokens=2)[0][0] is None


def test_equal_questions_are_asked_once():
    scripted = Scripted(lambda conversation: conversation[0]["content"])
    judge = LocalJudge(scripted, temperature=0.0, max_tokens=4)
    replies = judge.ask([[{"role": "user", "content": text}] for text in ("a", "b", "a")])
    assert [reply.text for reply in replies] == ["a", "b", "a"] and len(scripted.asked) == 2


def test_a_judge_by_its_path_is_a_reward():
    reward = bind("rlvr.reward", {"kind": "judge", "path": "./grader", "max_tokens": 9}).fn
    lender = Lender(Scripted(by_length))
    reward.connect(lender)
    rows = [answer(UID, 0, text) for text in ("4", "1234567890", "long")]
    reward.score(rows, {UID: PROBLEM})
    assert lender.paths == ["./grader"] and [row.score for row in rows] == [0.0, 1.0, None]
    assert rows[2].components["judge_unread"] == 1 and [row.correct for row in rows] == [True, False, False]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "give one of them"),
        ({"model": "a", "path": "./b"}, "give one of them"),
        ({"path": "./b", "url": "http://x/v1"}, "those of an endpoint"),
    ],
)
def test_settings_that_contradict_each_other(settings, words):
    with pytest.raises(RecipeError, match=words):
        bind("rlvr.reward", {"kind": "judge", **settings})


def graph(tmp_path, path):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rlvr, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4},
        "pairs": {"kind": "curate", "sources": [{"kind": "stage", "path": "drafts", "select": "pairs"}],
                  "splits": {"train": 0.8, "heldout": 0.2}},
        "scorer": {"kind": "reward_model", "data": "pairs", "model": "cold", "steps": 2},
        "grader": {"kind": "sft", "data": "data", **sft},
        "rl": {"kind": "rlvr", "data": "data", "model": "cold", **rlvr, "reward": ["verifier", {"kind": "judge", "path": path}]},
    }  # fmt: skip
    file = tmp_path / "graph.yaml"
    file.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(file)


def test_a_stage_is_an_input_and_a_folder_is_in_the_key(tmp_path, folder):
    read = graph(tmp_path, "grader")
    check(read)
    assert read.node("rl").inputs["reward.terms.1.path"] == "grader"
    read = graph(tmp_path, str(folder))
    check(read)
    parts = keys.key_parts(read, "rl", dict.fromkeys(read.node("rl").inputs, "digest"))
    assert any(name.startswith("reward.terms.1.path") for name in parts["files"])


def test_a_reward_model_is_no_judge(tmp_path):
    with pytest.raises(
        RecipeError, match=r"scorer makes reward_model, and model is wanted\. Name one of: cold, grader"
    ):
        check(graph(tmp_path, "scorer"))


def test_the_card_of_a_local_judge(tmp_path, folder, capsys):
    from flows.cli import main as cli

    rows = [{"prompt": "2 + 2?", "completion": text, "answer": "4", "verifier": "number"} for text in ("4", "5")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = json.dumps({"kind": "judge", "path": str(folder), "max_tokens": 4})
    command = [
        "judge",
        str(toys.recipe(tmp_path)),
        str(tmp_path / "rows.jsonl"),
        "--set",
        f"rlvr.reward={reward}",
        "--json",
    ]
    with pytest.raises(SystemExit) as left:
        cli.main(command)
    body = json.loads(capsys.readouterr().out)
    assert left.value.code == 0 and body["rows"] == 2
    assert body["unread_share"] == 1.0, "an untrained judge says nothing that can be read"
