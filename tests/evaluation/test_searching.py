"""Columns of an evaluation whose answers are searched for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import toys

from evaluation import run, searching
from evaluation.documents import questions
from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.engine.models import save_model, train_tokenizer
from pipelines.engine.reward_model import RewardNetwork, save
from pipelines.recipe.settings import Evaluate
from pipelines.stage.report import Report

SEARCH = [
    {"kind": "best_of_n", "n": 1, "score": "verifier"},
    {"kind": "particles", "n": 1, "step_tokens": 2, "score": "likelihood"},
    {"kind": "best_of_n", "n": 4, "score": "verifier", "label": "oracle4"},
    {"kind": "best_of_n", "n": 4, "score": {"kind": "reward_model", "model": "scorer"}},
    {"kind": "beam", "n": 4, "width": 2, "step_tokens": 2, "score": {"kind": "reward_model", "model": "scorer"}},
    {"kind": "best_of_n", "n": 2, "score": {"kind": "judge", "max_tokens": 4}, "label": "self2"},
    {"kind": "hierarchy", "n": 2, "levels": ["longer"], "tries": 2, "most": 1, "score": "verifier", "label": "climbed"},
]
TASK = {"name": "palindromes", "limit": 6, "samples": 4, "sampling": {"max_gen_toks": 6}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model that answers from few letters, and a reward model of its tokenizer, in `model` and `scorer`."""
    folder = tmp_path_factory.mktemp("searched")
    texts = [question for _, question in questions({"tasks": [{"name": "palindromes"}]})]
    tokenizer = train_tokenizer("char", 128, texts)
    network = toys.model("llama", len(tokenizer))
    save_model(network, tokenizer, folder / "model", {"stage": "sft"})
    save(RewardNetwork(network, 2, seed=3, text=False), tokenizer, folder / "scorer", {})
    return folder


def evaluated(folder, out, searches, **changes):
    settings = Evaluate(tasks=[TASK], batch_size=64, bootstrap=100, search=searches, **changes)
    searched = [
        {"name": f"sft-{each.suffix}", "model": "sft", "strategy": number, "scorer": None}
        for number, each in enumerate(settings.search)
    ]
    (out / "report").mkdir(parents=True)
    model = str(folder / "model")
    flat = run.run(
        settings, Model(path=model), checkpoints={"sft": model}, out=out, report=Report(out / "w"), seed=0,
        differences=[["sft", each["name"]] for each in searched], searched=searched,
        scorers={number: str(folder / "scorer") for number, each in enumerate(settings.search) if each.score.kind == "reward_model"},
    )  # fmt: skip
    return flat, json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def columns(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("columns")
    return out, *evaluated(model, out, SEARCH)


def rows(out, column):
    return [json.loads(line) for line in (out / "samples" / column / "palindromes.jsonl").read_text().splitlines()]


def test_a_single_candidate_gives_the_file_of_the_model_alone(columns):
    out, _, body = columns
    assert list(body["evaluation"])[-1] == "sft" and len(body["evaluation"]) == 8
    alone = (out / "samples" / "sft" / "palindromes.jsonl").read_bytes()
    for column in ("sft-best1", "sft-particles1"):
        assert (out / "samples" / column / "palindromes.jsonl").read_bytes() == alone
    assert body["searched"]["sft-best1"] == {"model": "sft", "scorer": None, "strategy": 0}


def test_tokens_stand_beside_the_score(columns):
    """An answer among four costs the tokens of four; what a model reads for it is at most that. The verifier reads nothing."""
    out, flat, body = columns
    cells = {name: by_task["palindromes"] for name, by_task in body["evaluation"].items()}
    alone = cells["sft"]["drawn_tokens"]["value"]
    assert alone == pytest.approx(np.mean([row["drawn_tokens"] for row in rows(out, "sft")]))
    assert cells["sft"]["scored_tokens"]["value"] == cells["sft-oracle4"]["scored_tokens"]["value"] == 0
    by_model = cells["sft-best4"]
    assert 2.5 * alone < by_model["drawn_tokens"]["value"] == cells["sft-oracle4"]["drawn_tokens"]["value"] < 5 * alone
    assert (
        0.8 * by_model["drawn_tokens"]["value"]
        < by_model["scored_tokens"]["value"]
        <= by_model["drawn_tokens"]["value"]
    )
    assert cells["sft-beam4x2"]["scored_tokens"]["value"] > by_model["scored_tokens"]["value"], (
        "prefixes are read again"
    )
    assert flat["sft-best4/palindromes/drawn_tokens"] == by_model["drawn_tokens"]["value"]


def test_the_oracle_is_never_below_the_model_and_solves_what_a_candidate_solves(columns):
    out, _, body = columns
    alone, oracle = rows(out, "sft"), rows(out, "sft-oracle4")
    for before, after in zip(alone, oracle, strict=True):
        assert all(b >= a for a, b in zip(before["scores"], after["scores"], strict=True)), (
            "the first candidate is the same"
        )
    gain = body["differences"]["palindromes"]["sft → sft-oracle4"]["value"]
    assert gain >= 0


def test_a_climb_starts_from_the_model_s_own_answer(columns):
    """Two climbs of one level end after two failures each, so an answer costs about five at least; none is below the first one."""
    out, _, body = columns
    for before, after in zip(rows(out, "sft"), rows(out, "sft-climbed"), strict=True):
        assert all(b >= a for a, b in zip(before["scores"], after["scores"], strict=True))
        assert after["drawn_tokens"] > 2.5 * before["drawn_tokens"]
    assert body["differences"]["palindromes"]["sft → sft-climbed"]["value"] >= 0


def test_columns_are_compared_with_a_vote_of_as_many_tokens():
    settings = Evaluate(tasks=["palindromes"], bootstrap=100)
    correct, texts = [1, 0, 1, 0], ["a", "b", "a", "c"]
    alone = [{"scores": correct, "filtered_resps": [texts], "drawn_tokens": 4.0, "scored_tokens": 0.0}] * 3
    searched = [{"scores": [1, 1, 1, 0], "filtered_resps": [texts], "drawn_tokens": 8.0, "scored_tokens": 4.5}] * 3
    cells, gains = searching.against_votes(searched, alone, settings)
    assert cells["vote_at_equal_drawn"]["answers"] == 2 and cells["vote_at_equal_tokens"]["answers"] == 3
    assert cells["vote_at_equal_drawn"]["value"] == 0.5, "two votes of two answers, all of them ties"
    assert cells["vote_at_equal_tokens"]["value"] == 1.0, "one vote of the first three answers"
    assert (gains["vote_at_equal_drawn"]["value"], gains["vote_at_equal_tokens"]["value"]) == (0.25, -0.25)
    dear = [row | {"drawn_tokens": 20.0} for row in searched]
    assert searching.against_votes(dear, alone, settings) == ({}, {}), "five answers, and each question has four"


def test_votes_are_among_the_metrics_and_the_differences(columns):
    _, _, body = columns
    cell = body["evaluation"]["sft-self2"]["palindromes"]["vote_at_equal_drawn"]
    assert cell["answers"] in (1, 2) and 0 <= cell["low"] <= cell["value"] <= cell["high"] <= 1
    gain = body["differences"]["palindromes vote_at_equal_drawn"]["sft → sft-self2"]
    score = body["evaluation"]["sft-self2"]["palindromes"]["pass@1"]["value"]
    assert gain["value"] == pytest.approx(score - cell["value"])


def test_what_cannot_be_searched_is_refused_before_a_model_is_loaded(model, tmp_path):
    greedy = TASK | {"sampling": {"do_sample": False}}
    settings = Evaluate(tasks=[greedy], search=SEARCH[2:3])
    nowhere = {"sft": str(tmp_path / "nowhere")}
    with pytest.raises(RecipeError, match=r"palindromes decodes greedily.*palindromes\.sampling"):
        run.run(settings, Model(path="x"), checkpoints=nowhere, out=tmp_path, report=Report(tmp_path / "w"), seed=0)
    tokenizer = train_tokenizer("char", 64, ["other"])
    with torch.no_grad():
        save(
            RewardNetwork(toys.model("llama", len(tokenizer)), 1, seed=0, text=False),
            tokenizer,
            tmp_path / "scorer",
            {},
        )
    (tmp_path / "model").symlink_to(model / "model")
    with pytest.raises(ModelError, match=r"evaluate\.search\.score\.model: its tokenizer or chat template is another"):
        evaluated(tmp_path, tmp_path / "out", SEARCH[3:4])


TOY = (
    "model.fresh.config.hidden_size=32", "model.fresh.config.intermediate_size=64", "model.fresh.config.num_hidden_layers=2",
    "data.sources.0.size=800", "data.sources.0.config={min_length: 3, max_length: 4}", "data.splits={sft: 0.6, drafts: 0.3, heldout: 0.1}",
    "cold.steps=300", "cold.tokens_per_step=1024", "drafts.problems=100", "drafts.sampling.max_tokens=8", "scorer.epochs=1",
    "scores.tasks=[{name: palindromes, limit: 5, samples: 6}]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_the_recipe_runs_at_toy_size(tmp_path):
    """Drafts, pairs, reward model and all seven searched columns through the flow."""
    overrides = [text for override in TOY for text in ("--set", override)]
    summary = tmp_path / "summary.json"
    recipe = str(toys.ROOT / "recipes/search.yaml")
    toys.whetstone("run", recipe, *overrides, "--summary", str(summary), home=tmp_path / "home")
    body = json.loads(summary.read_text())
    assert list(body["evaluation"]) == [
        *(f"cold-{name}" for name in ("best4", "best8", "likely8", "oracle8", "beam8x2", "particles8", "max8")), "cold",
    ]  # fmt: skip
    cells = {name: by_task["palindromes"] for name, by_task in body["evaluation"].items()}
    assert cells["cold-oracle8"]["pass@1"]["value"] >= cells["cold"]["pass@1"]["value"]
    assert cells["cold-beam8x2"]["scored_tokens"]["value"] > 0 == cells["cold-likely8"]["scored_tokens"]["value"]
    assert "cold → cold-best4" in body["differences"]["palindromes vote_at_equal_drawn"]
