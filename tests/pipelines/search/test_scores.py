"""What candidates are scored by."""

from __future__ import annotations

import math

import judge_server
import pytest
import toys
from pydantic import TypeAdapter

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.data.records import Problem
from pipelines.engine.models import train_tokenizer
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.search import Search
from pipelines.search.paths import Path, Question
from pipelines.search.scores import load_score

PROBLEM = Problem(
    uid="", prompt=[{"role": "user", "content": "1 + 1?"}], answer="2", verifier="number", source="", licence=""
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("char", 64, ["Grade: 0123456789 abc"])


@pytest.fixture(scope="module")
def own(tokenizer):
    model = toys.model("llama", len(tokenizer))
    return TorchSampler(model, stop=[tokenizer.eos_token_id], pad=tokenizer.pad_token_id)


def score_by(score, own, tokenizer, path=None):
    search = TypeAdapter(Search).validate_python({"kind": "best_of_n", "score": score})
    return load_score(search, Model(path="x"), own, tokenizer, path=path, budget=512, field="evaluate.search")


def paths(tokenizer, *texts):
    prompt = [5, 6, 7]
    question = Question(prompt, 0, tokenizer.decode, PROBLEM)
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [Path(question, tokens, [-0.5 * (i + 1)] * len(tokens)) for i, tokens in enumerate(encoded)]


def test_a_reward_model_reads_prompt_and_answer_so_far(own, tokenizer, tmp_path):
    save(RewardNetwork(own.model, 2, seed=1, text=False), tokenizer, tmp_path / "rm", {})
    score = score_by({"kind": "reward_model", "model": "scorer"}, own, tokenizer, str(tmp_path / "rm"))
    asked = paths(tokenizer, "a", "abc", "cab 12")
    scorer = RewardScorer(tmp_path / "rm", Model(path="x"), budget=1, field="f")
    alone = [float(scorer.score([[5, 6, 7, *path.tokens]], [3]).mean()) for path in asked]
    assert score.reads and score(asked) == pytest.approx(alone, abs=1e-4) and len(set(alone)) == 3
    other = train_tokenizer("char", 64, ["other letters"])
    with pytest.raises(ModelError, match=r"evaluate\.search\.score\.model: its tokenizer or chat template is another"):
        score_by({"kind": "reward_model", "model": "scorer"}, own, other, str(tmp_path / "rm"))


def test_the_likelihood_is_of_the_whole_answer_or_of_a_token(own, tokenizer):
    asked = paths(tokenizer, "ab", "abc", "")
    total, per_token = (
        score_by({"kind": "likelihood", "per_token": flag}, own, tokenizer)(asked) for flag in (False, True)
    )
    assert total[:2] == [-1.0, -3.0] and per_token[:2] == [-0.5, -1.0]
    assert math.isnan(total[2]) and math.isnan(per_token[2])


def test_the_verifier_is_the_problem_s_own(own, tokenizer):
    score = score_by("verifier", own, tokenizer)
    assert score(paths(tokenizer, "2", "3", "a 2")) == [1.0, 0.0, 1.0] and not score.reads


def test_a_judge_grades_the_text_so_far(own, tokenizer, monkeypatch, tmp_path):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path))

    def rule(body):
        asked, conversation, _, answer = judge_server.parts(body)
        assert "Be strict." in asked and conversation == "[user] 1 + 1?"
        return "no idea" if answer == "c" else f"Grade: {len(answer)}"

    with judge_server.running(rule) as judge:
        settings = {"kind": "judge", "model": "m", "url": judge.url, "low": 1, "high": 5, "instruction": "Be strict."}
        grades = score_by(settings, own, tokenizer)(paths(tokenizer, "ab", "c", "abcab"))
    assert grades[0] == 0.25 and math.isnan(grades[1]) and grades[2] == 1.0


def test_without_a_judge_the_searched_model_grades_itself(own, tokenizer):
    """A random model gives no grade; it is asked all the same, and says the same again."""
    score = score_by({"kind": "judge", "max_tokens": 3}, own, tokenizer)
    first, again = (score(paths(tokenizer, "ab", "abc")) for _ in range(2))
    assert score.judge.model.sampler is own and [str(a) for a in first] == [str(b) for b in again]
