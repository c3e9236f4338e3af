"""The reward model itself: shared layouts give the scores of separate rows, and its checkpoint is transformers' own."""

from __future__ import annotations

import json

import pytest
import reward_pairs
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.engine.answers import Answers
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save

PAD = 0
ROWS = [[5, 6, 7, 8, 9, 2], [5, 6, 7, 4, 2], [5, 6, 7, 8, 11, 12, 13, 2], [9, 9, 2], [5, 6, 7, 8, 9, 2]]
STARTS = [3, 3, 3, 2, 3]


def network(family="llama", heads=1, text=False):
    return RewardNetwork(toys.model(family), heads, seed=1, text=text)


def classifier_scores(folder, rows):
    """What transformers gives, row by row."""
    from transformers import AutoModelForSequenceClassification

    loaded = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    with torch.no_grad():
        return torch.stack([loaded(torch.tensor([row])).logits[0] for row in rows])


def saved(tmp_path, net, **about):
    tokenizer = models.train_tokenizer("char", 100, ["".join(map(chr, range(33, 120)))])
    save(net, tokenizer, tmp_path / "rm", {"stage": "reward_model"}, **about)
    return tmp_path / "rm"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("budget", [8, 10_000])
def test_a_score_is_what_transformers_reads_at_the_last_token(tmp_path, family, budget):
    net = network(family)
    scores, _ = reward_pairs.scores(net, Answers.of(ROWS, STARTS, PAD), budget)
    torch.testing.assert_close(scores.detach(), classifier_scores(saved(tmp_path, net), ROWS), atol=2e-5, rtol=1e-4)


def test_a_saved_model_scores_as_before(tmp_path):
    net = network(heads=3)
    expected, _ = reward_pairs.scores(net, Answers.of(ROWS, STARTS, PAD), 64)
    folder = saved(tmp_path, net)
    scorer = RewardScorer(folder, Model(path=str(folder)), budget=32, field="reward")
    torch.testing.assert_close(scorer.score(ROWS, STARTS), expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        classifier_scores(folder, ROWS)[:, 0], expected.detach().mean(1), atol=1e-5, rtol=1e-5
    )  # linear heads: the mean of the scores is the score of the mean
    only = saved(tmp_path / "first", net, only_first=True)
    assert RewardScorer(only, Model(path=str(only)), budget=32, field="reward").heads == 1
    torch.testing.assert_close(classifier_scores(only, ROWS)[:, 0], expected.detach()[:, 0], atol=1e-5, rtol=1e-5)


def test_a_conversation_beyond_the_context_has_no_score(tmp_path):
    folder = saved(tmp_path, network("gpt2"))
    scorer = RewardScorer(folder, Model(path=str(folder)), budget=512, field="reward")
    scores = scorer.score([[5] * 128, [5] * 129], [1, 1])
    assert torch.isfinite(scores[0]).all() and torch.isnan(scores[1]).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=9), min_size=1, max_size=6), st.data())
def test_rows_end_at_their_last_token_and_read_one_reward(rows, draw):
    starts = [draw.draw(st.integers(0, len(row))) for row in rows]
    answers = Answers.of([row + [PAD] * (i % 3) for i, row in enumerate(rows)], starts, PAD)
    assert answers.end.tolist() == [len(row) for row in rows]
    assert not answers.mask[:, 0].any() and answers.mask.gather(1, answers.end[:, None]).all()
    read = torch.cat(
        [
            answers.where(layout)[0][answers.where(layout)[1]]
            for layout in answers.layouts(16, trees=True, prefixes=True)
        ]
    )
    assert sorted(read.tolist()) == list(range(len(rows)))


def test_gradients_of_shared_rows_are_those_of_separate_ones():
    def gradients(budget, rows):
        net = network(text=True)
        for row, start in rows:
            scores, logps = reward_pairs.scores(net, Answers.of(row, start, PAD), budget, text=True)
            (scores.sum() * 2 + logps.sum()).backward()
        return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}

    together = gradients(10_000, [(ROWS, STARTS)])
    separate = gradients(10_000, [([row], [start]) for row, start in zip(ROWS, STARTS, strict=True)])
    assert together.keys() == separate.keys() and any("lm_head" in name or "embed" in name for name in together)
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, separate[name], atol=1e-4, rtol=1e-3)


def test_other_checkpoints_are_refused_both_ways(tmp_path):
    tokenizer = models.train_tokenizer("char", 100, ["".join(map(chr, range(33, 120)))])
    models.save_model(toys.model(), tokenizer, tmp_path / "lm", {})
    with pytest.raises(ModelError, match=r"rlvr\.reward\.model: .* is no reward model but LlamaForCausalLM"):
        RewardScorer(tmp_path / "lm", Model(path="x"), budget=8, field="rlvr.reward.model")
    folder = saved(tmp_path, network())
    with pytest.raises(ModelError, match="is a reward model"):
        models.load_model(folder, Model(path=str(folder)))
    config = json.loads((folder / "config.json").read_text())
    labels = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    (folder / "config.json").write_text(json.dumps(config | labels))
    with pytest.raises(ModelError, match="has 2 labels"):
        RewardScorer(folder, Model(path="x"), budget=8, field="rlvr.reward.model")
