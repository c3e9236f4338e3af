"""The reward of a learned reward model: its own scores, ensembles, stages and paths, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import toys
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scripted import RewardModels, conversation
from scripted import tokenizer as scripted_tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.engine import models
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr import reward_models
from pipelines.rlvr.common.ensemble import aggregated
from tasks import keys

UID = "a" * 32
PROMPT = [{"role": "user", "content": "say abc"}]
PROBLEMS = {UID: Problem(uid=UID, prompt=PROMPT, answer="4", verifier="number", source="s", licence="l")}
ROWS = st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two reward models of three heads, in `a` and `b`, of one tokenizer."""
    folder = tmp_path_factory.mktemp("reward_models")
    tokenizer = models.train_tokenizer("char", 100, ["".join(map(chr, range(33, 120)))])
    about = {"stage": "reward_model", "score_mean": [0.5, 0.0, -1.0], "score_std": [2.0, 1.0, 0.5]}
    for seed, name in enumerate("ab"):
        save(RewardNetwork(toys.model(), 3, seed=seed, text=False), tokenizer, folder / name, about)
    return folder


def rollout(tokenizer, text, stop=Stop.END):
    from pipelines.data.chat import render_answer

    ids, start = render_answer(tokenizer, PROMPT, text, "x")
    role = [int(Role.PROMPT)] * start + [int(Role.POLICY)] * (len(ids) - start)
    return Trajectory(
        uid=UID,
        group=0,
        tokens=ids,
        role=role,
        logp_old=[0.0] * len(ids),
        max_tokens=9,
        stop=stop,
        version=0,
        text=text,
    )


def scored(saved, texts, tokenizer=None, **settings):
    tokenizer = tokenizer or models.load_tokenizer(saved / "a")
    reward = bind("rlvr.reward", {"kind": "model", **settings}).fn
    reward.connect(RewardModels(tokenizer))
    rows = [rollout(tokenizer, text) for text in texts]
    reward.score(rows, PROBLEMS)
    return rows


def heads(saved, name, texts):
    """What the heads give, one row and one pass at a time."""
    scorer = RewardScorer(saved / name, Model(path="x"), budget=1, field="f")
    rows = [rollout(scorer.tokenizer, text) for text in texts]
    return torch.cat([scorer.score([row.tokens], [4]) for row in rows])


def test_a_row_gets_the_scores_of_its_own_tokens(saved):
    texts = ["4", "five", "tell-it-again"]
    rows = scored(saved, texts, model=str(saved / "a"))
    expected = heads(saved, "a", texts)
    assert [row.score for row in rows] == pytest.approx(expected.mean(1).tolist(), abs=1e-4)
    assert [row.correct for row in rows] == [True, False, False], "the verdict stays the verifier's"
    assert rows[0].components["disagreement"] == pytest.approx(float(expected[0].std(correction=0)), abs=1e-4)


def test_a_policy_of_another_tokenizer_is_read_as_text(saved):
    other = models.train_tokenizer("char", 60, ["say abc five 4"])
    assert not RewardScorer(saved / "a", Model(path="x"), budget=9, field="f").reads(other)
    rows = scored(saved, ["five"], tokenizer=other, model=str(saved / "a"))
    assert rows[0].score == pytest.approx(float(heads(saved, "a", ["five"]).mean()), abs=1e-4)


def test_members_are_all_heads_of_all_models_and_normalised_each(saved):
    both = [str(saved / "a"), str(saved / "b")]
    raw = torch.cat([heads(saved, name, ["4", "five"]) for name in "ab"], 1)
    rows = scored(saved, ["4", "five"], model=both, ensemble="min")
    assert [row.score for row in rows] == pytest.approx(raw.min(1).values.tolist(), abs=1e-4)
    z = (raw - torch.tensor([0.5, 0.0, -1.0] * 2)) / torch.tensor([2.0, 1.0, 0.5] * 2)
    rows = scored(saved, ["4", "five"], model=both, ensemble="variance", penalty=0.5, normalise=True)
    expected = z.double().mean(1) - 0.5 * z.double().var(1, correction=0)
    assert [row.score for row in rows] == pytest.approx(expected.tolist(), abs=1e-3)


def test_what_failed_or_does_not_fit_is_unscored(saved, tmp_path):
    tokenizer = models.train_tokenizer("char", 100, ["".join(map(chr, range(33, 120)))])
    save(RewardNetwork(toys.model("gpt2"), 1, seed=0, text=False), tokenizer, tmp_path / "short", {})
    reward = bind("rlvr.reward", {"kind": "model", "model": str(tmp_path / "short")}).fn
    reward.connect(RewardModels(tokenizer))
    rows = [rollout(tokenizer, "4"), rollout(tokenizer, "5" * 140), rollout(tokenizer, "4", Stop.ERROR)]
    reward.score(rows, PROBLEMS)
    assert [row.score is None for row in rows] == [False, True, True]
    with pytest.raises(RecipeError, match=r"rlvr\.reward\.normalise: .*short does not say"):
        scored(tmp_path, ["4"], tokenizer, model=str(tmp_path / "short"), normalise=True)


@given(ROWS, st.floats(0, 3), st.floats(-3, 3), st.permutations([0, 1, 2]))
def test_ensembles(rows, penalty, shift, order):
    scores = torch.tensor(rows, dtype=torch.float64)
    for how in ("mean", "median", "min", "variance"):
        value = aggregated(scores, how, penalty)
        torch.testing.assert_close(aggregated(scores[:, order], how, penalty), value)
        torch.testing.assert_close(aggregated(scores + shift, how, penalty), value + shift)
        torch.testing.assert_close(aggregated(scores[:, :1].expand(-1, 3), how, penalty), scores[:, 0])
        assert (value <= aggregated(scores, "mean", 0) + 1e-9).all() or how == "median"
    assert (aggregated(scores, "min", 0) <= aggregated(scores, "median", 0)).all()


def test_members_without_a_score_are_left_out_while_half_remain():
    nan = float("nan")
    scores = torch.tensor([[1.0, nan, 3.0], [nan, nan, 3.0], [nan, nan, nan]])
    values = aggregated(scores, "mean", 0)
    assert values[0] == 2 and values[1:].isnan().all()


def graph(tmp_path, **rl):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rlvr, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    pairs = [{"kind": "stage", "path": "drafts", "select": "pairs"}]
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4},
        "pairs": {"kind": "curate", "sources": pairs, "splits": {"train": 0.8, "heldout": 0.2}},
        "scorer": {"kind": "reward_model", "data": "pairs", "model": "cold", "steps": 2},
        "rl": {"kind": "rlvr", "data": "data", "model": "cold", **rlvr, **rl},
    }  # fmt: skip
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def test_a_stage_is_an_input_and_a_path_is_in_the_key(tmp_path, saved):
    terms = ["verifier", {"kind": "model", "model": ["scorer", str(saved / "a")], "weight": 0.5}]
    read = graph(tmp_path, reward=terms)
    check(read)
    node = read.node("rl")
    assert node.inputs["reward.terms.1.model.0"] == "scorer" and "scorer" in [s.name for s in node.sources]
    assert list(read.graph).index("scorer") < list(read.graph).index("rl")
    parts = keys.key_parts(read, "rl", dict.fromkeys(node.inputs, "digest"))
    assert parts["inputs"]["reward.terms.1.model.0"] == "digest"
    named = parts["settings"]["rlvr"]["reward"]["terms"][1]["model"]
    assert named == [None, "a local path"] and str(saved) not in json.dumps(
        {k: v for k, v in parts.items() if k != "where"}
    )
    assert any(name.startswith("reward.terms.1.model.1") for name in parts["files"])
    assert {"pipelines.rlvr.reward.model", "pipelines.engine.reward_model"} <= parts["source"].keys()
    section = reward_models.with_folders(node.kind.reads(node).settings["rlvr"], {"reward.terms.1.model.0": "/art"})
    assert section["reward"]["terms"][1]["model"] == ["/art/model", str(saved / "a")]


def test_rounds_refresh_the_reward_model():
    """Each round's RL is paid by the model that learned from drafts of the policy of the round before."""
    read = read_recipe(toys.ROOT / "recipes" / "parl.yaml")
    check(read)
    for number, policy in ((1, "cold"), (2, "rl-1")):
        rl, drafts = read.node(f"rl-{number}"), read.node(f"drafts-{number}")
        assert (
            rl.inputs["reward.model"] == f"scorer-{number}" and rl.inputs["model"] == drafts.inputs["model"] == policy
        )
        assert read.node(f"scorer-{number}").inputs["data"] == f"pairs-{number}"
        assert f"drafts-{number}" in [node.name for node in read.node(f"pairs-{number}").sources]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("cold", r"rl\.reward\.model: cold makes model, and reward_model is wanted\. Name one of: scorer"),
        ("scorers", r"rl\.reward\.model: there is no stage called 'scorers'\. Did you mean 'scorer'"),
        ("{folder}/lm", r"rl\.reward\.model: .*/lm is no reward model but LlamaForCausalLM"),
    ],
)
def test_what_is_no_reward_model_is_refused(tmp_path, named, words):
    tokenizer = models.train_tokenizer("char", 100, ["abc"])
    models.save_model(toys.model(), tokenizer, tmp_path / "lm", {})
    with pytest.raises(RecipeError, match=words):
        check(graph(tmp_path, reward={"kind": "model", "model": named.format(folder=tmp_path)}))


def test_a_reward_model_is_no_policy(tmp_path, saved):
    with pytest.raises(
        RecipeError, match=r"rl\.model: scorer is a stage of kind reward_model, which makes reward_model"
    ):
        check(graph(tmp_path, model="scorer"))
    with pytest.raises(RecipeError, match=r"model\.path: .* is a reward model"):
        check(read_recipe(toys.recipe(tmp_path, model={"path": str(saved / "a"), "fresh": None})))


def test_names_are_told_from_paths():
    spec = {"reward": {"kind": "model", "model": ["judge-2", "./rm", "org/name", "~/rm", "package:x", "C:\\rm"]}}
    assert [each.is_stage for each in reward_models.named(spec)] == [True, False, False, False, False, False]


def test_turns_are_paid_the_ensemble_s_view_of_the_conversation_so_far(tmp_path):
    own = scripted_tokenizer()
    about = {"stage": "reward_model", "score_mean": [0.5, 0.0], "score_std": [2.0, 1.0]}
    save(RewardNetwork(toys.model(vocab=128), 2, seed=0, text=False), own, tmp_path / "rm", about)
    part = bind(
        "rlvr.reward",
        {"kind": "model", "model": str(tmp_path / "rm"), "turns": True, "ensemble": "min", "normalise": True},
    ).fn
    part.connect(RewardModels(own))
    row = conversation(UID, "ab", "why", "cde", outcome=0.0)
    part.score([row], PROBLEMS)
    scorer = RewardScorer(str(tmp_path / "rm"), Model(path="x"), budget=256, field="f")
    alone = [
        (scorer.score([row.tokens[:end]], [1])[0] - torch.tensor([0.5, 0])) / torch.tensor([2.0, 1]) for end in (3, 9)
    ]
    assert row.turn_reward == pytest.approx([float(each.min()) for each in alone], abs=1e-5)
    assert row.score == pytest.approx(sum(row.turn_reward)) and row.components["outcome"] == 0 and row.correct is False
    single = conversation(UID, "ab")
    single.turn_reward = None
    with pytest.raises(RecipeError, match="model pays turns, and the rollout has none"):
        part.score([single], PROBLEMS)
    with pytest.raises(RecipeError, match="has another tokenizer or chat template than the policy"):
        part.connect(RewardModels(models.train_tokenizer("char", 60, ["abc"])))
