"""A reward model's columns: scores of prefixes for RED, attention for ABC, in a real run and against transformers."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save
from pipelines.papers.abc import token_rewards

BUDGET = 24


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Data, a trained policy, a reward model of its family in `rm` and one of another tokenizer in `other`."""
    folder = toys.start(tmp_path_factory.mktemp("reward_columns"), overrides=["sft.steps=40"])
    tokenizer = models.load_tokenizer(folder / "sft/out/model")
    base = models.load_model(folder / "sft/out/model", Model(path="x"))
    save(RewardNetwork(base, 2, seed=1, text=False), tokenizer, folder / "rm", {})
    other = models.train_tokenizer("char", 100, ["".join(map(chr, range(33, 120)))])
    save(RewardNetwork(toys.model(), 1, seed=1, text=False), other, folder / "other", {})
    return folder


def filled(begun, tmp_path, monkeypatch, *overrides):
    """The columns that credit saw in a step of a real run, with the trainer."""
    from pipelines.rlvr import algorithm

    told = []
    assign = algorithm.assign_credit
    monkeypatch.setattr(
        algorithm,
        "assign_credit",
        lambda update, columns, *more: told.append(columns) or assign(update, columns, *more),
    )
    run = toys.trainer(
        tmp_path, begun, toys.recipe(tmp_path), "rlvr.steps=1", f"rlvr.reward={{kind: model, model: {begun}/rm}}",
        f"rlvr.micro_batch_tokens={BUDGET}", *overrides,
    )  # fmt: skip
    run.run()
    return told[0]


def test_values_are_scores_of_prefixes_and_the_reward_is_that_of_the_whole(begun, tmp_path, monkeypatch):
    columns = filled(
        begun,
        tmp_path,
        monkeypatch,
        f"rlvr.providers=[{{kind: reward_prefix, model: {begun}/rm}}]",
        "rlvr.credit=[red]",
    )
    scorer = RewardScorer(begun / "rm", Model(path="x"), budget=1, field="f")
    for row in range(3):
        ids, places = columns["token"][row].tolist(), columns["mask"][row].nonzero().squeeze(1).tolist()
        prefixes = torch.cat([scorer.score([ids[:place]], [place - 1]) for place in places]).mean(1)
        torch.testing.assert_close(columns["value"][row][places], prefixes, atol=1e-4, rtol=1e-4)
        whole_row = scorer.score([ids[: places[-1] + 1]], [places[0]]).mean()
        assert float(columns["reward"][row]) == pytest.approx(float(whole_row), abs=1e-4)


def test_attention_is_what_transformers_says(begun, tmp_path, monkeypatch):
    columns = filled(
        begun, tmp_path, monkeypatch, f"rlvr.providers=[{{kind: reward_attention, model: {begun}/rm}}]",
        "rlvr.credit=[abc_attention]",
    )  # fmt: skip
    from transformers import AutoModelForSequenceClassification

    loaded = AutoModelForSequenceClassification.from_pretrained(begun / "rm", attn_implementation="eager").eval()
    for row in range(3):
        places = columns["mask"][row].nonzero().squeeze(1)
        with torch.no_grad():
            outputs = loaded.model(columns["token"][row][None, : int(places[-1]) + 1], output_attentions=True)
        weights = outputs.attentions[-1][0, :, -1].mean(0)[places]
        torch.testing.assert_close(
            columns["reward_attention"][row][places], weights / weights.sum(), atol=1e-5, rtol=1e-4
        )
        assert float(columns["reward_attention"][row].sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("provider", "credit"), [("reward_prefix", "red"), ("reward_attention", "abc_attention")])
def test_a_model_of_other_tokens_is_refused(begun, tmp_path, monkeypatch, provider, credit):
    with pytest.raises(RecipeError, match=r"rlvr\.providers\.model: .* another tokenizer"):
        filled(
            begun, tmp_path, monkeypatch, f"rlvr.providers=[{{kind: {provider}, model: {begun}/other}}]",
            f"rlvr.credit=[{credit}]",
        )  # fmt: skip


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.lists(st.floats(0, 1), min_size=4, max_size=4)), min_size=1, max_size=5),
    st.floats(0, 1),
)
@example([(1.0, [0.0, 0.0, 0.0, 1e-39])], 1.0)
def test_token_rewards_add_up_to_the_reward_and_have_its_sign(rows, beta):
    reward, attention = torch.tensor([r for r, _ in rows]), torch.tensor([a for _, a in rows])
    mask = torch.tensor([[False, True, True, True]]).expand(len(rows), 4)
    paid, none = torch.nn.functional.pad(reward[:, None], (3, 0)), torch.zeros(mask.shape)
    shares = token_rewards(paid, none, attention, mask, beta)
    torch.testing.assert_close(shares.sum(1), reward.double(), atol=1e-6, rtol=1e-6)
    assert ((shares * reward[:, None]) >= -1e-9).all() and not shares[:, 0].any()
    torch.testing.assert_close(token_rewards(paid, none, attention, mask, 0)[:, 3], reward.double())
    penalty = torch.tensor([[0.0, 0.5, 0.0, 0.25]]).expand(len(rows), 4)
    charged = token_rewards(paid - penalty, penalty, attention, mask, beta)
    torch.testing.assert_close(charged, shares - penalty, atol=1e-5, rtol=1e-5)
